"""Instance launches: CreateFleet requests, launch templates and the errors that EC2 returned."""
