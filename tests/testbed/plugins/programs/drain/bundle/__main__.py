"""One resource with a provider in Python of this project, and settings that make it fail."""

import os
import sys

import pulumi

from bundle.teardown import Drain  # type: ignore[import-not-found]  # of this project, not of ours

config = pulumi.Config()


def fail_deep_inside() -> None:
    raise ValueError("the tea is cold")


match config.get("fault"):
    case "exception":
        fail_deep_inside()
    case "exit":
        sys.exit(3)
    case "refusal":
        raise pulumi.RunError("cluster: 'x y' is no cluster name; letters and digits are allowed")

drain = Drain("drain", config.require("file"), config.require("gate"), config.require("text"))
pulumi.export("interpreter", sys.executable)
pulumi.export("text", drain.text)
pulumi.export("within", os.environ.get("WITHIN", "no"))
