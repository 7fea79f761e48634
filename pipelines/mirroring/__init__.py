"""`retrace mirror`: every MLflow run again from what is kept outside of MLflow."""
