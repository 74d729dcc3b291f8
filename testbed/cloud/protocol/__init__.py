"""AWS's wire protocols: parsing of requests, writing of responses."""
