"""EC2: instances, fleets, launch templates, networks, prices."""
