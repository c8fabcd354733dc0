# The lessons in JupyterLab: README says how to run it. What a learner writes lies in the folder
# lessons, which is a volume; without a named one, docker run --rm would delete it.
FROM condaforge/miniforge3:25.3.1-0
RUN useradd --create-home learner && install -d -o learner /home/learner/lessons
WORKDIR /home/learner/mplab
COPY --chown=learner . .
RUN mamba env update --yes --name base --file .binder/environment.yml \
    && .binder/postBuild \
    && mamba clean --all --yes
USER learner
VOLUME /home/learner/lessons
EXPOSE 8888
CMD ["mplab", "lab", "--no-browser", "--ip=0.0.0.0", "--dir=/home/learner/lessons"]
