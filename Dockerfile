# The lessons in JupyterLab: docker build -t mplab . && docker run --rm -it -p 8888:8888 mplab
FROM python:3.11-slim
RUN useradd --create-home learner
WORKDIR /home/learner/mplab
COPY --chown=learner . .
RUN pip install --no-cache-dir --constraint constraints.txt --editable ".[lab]"
USER learner
EXPOSE 8888
CMD ["mplab", "lab", "--no-browser", "--ip=0.0.0.0", "--dir=/home/learner/lessons"]
