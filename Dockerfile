# The lessons in JupyterLab: docker build -t mplab . && docker run --rm -it -p 8888:8888 mplab
FROM condaforge/miniforge3
RUN useradd --create-home learner
WORKDIR /home/learner/mplab
COPY --chown=learner . .
RUN mamba env update --yes --name base --file .binder/environment.yml \
    && .binder/postBuild \
    && mamba clean --all --yes
USER learner
EXPOSE 8888
CMD ["mplab", "lab", "--no-browser", "--ip=0.0.0.0", "--dir=/home/learner/lessons"]
