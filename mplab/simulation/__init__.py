"""How `mplab.simulate` works: marks on memory, rules on operations, replicas of kernels."""
