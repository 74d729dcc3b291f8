"""Names by which states of earlier versions know what is called otherwise today.

A stack's state names the class of a resource's provider by module and name, and `pulumi destroy`
imports it by these. A class that is renamed or moved leaves its old name here, for good.
"""

from infra.statefulprovider import StatefulProvider as Remembering

__all__ = ["Remembering"]
