"""What people look at; everything here only reads the cluster."""
