"""Elastic Container Registry: repositories."""

from __future__ import annotations

from typing import Final

from testbed.plugins.awsprovider.resourcetype import (
    Resource,
    change_tags,
    from_tag_list,
    to_tag_list,
)
from testbed.plugins.codec import Bag


class Repository(Resource):
    """`aws.ecr.Repository`."""

    token = "aws:ecr/repository:Repository"
    source = "ecr/repository.go"
    service = "ecr"
    is_taggable = True
    automatic_name = "name"
    name_limit = 256
    fixed = ("name", "encryptionConfigurations")
    computed = ("arn", "registryId", "repositoryUrl")
    defaults = {"imageTagMutability": "MUTABLE"}

    def create(self, inputs: Bag) -> str:
        arguments: Bag = {}
        for block in inputs.get("encryptionConfigurations") or []:
            arguments["encryptionConfiguration"] = {
                "encryptionType": block.get("encryptionType") or "AES256",
                **({"kmsKey": block["kmsKey"]} if block.get("kmsKey") else {}),
            }
        answer = self.api.create_repository(
            repositoryName=inputs["name"],
            imageTagMutability=inputs["imageTagMutability"],
            imageScanningConfiguration={"scanOnPush": _scans(inputs)},
            tags=to_tag_list(inputs.get("tags")),
            **arguments,
        )
        return str(answer["repository"]["repositoryName"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        answer = self.api.describe_repositories(repositoryNames=[identity])
        repository = answer["repositories"][0]
        tags = self.api.list_tags_for_resource(resourceArn=repository["repositoryArn"])["tags"]
        scanning = repository.get("imageScanningConfiguration") or {}
        return {
            "arn": repository["repositoryArn"],
            "name": identity,
            "registryId": repository["registryId"],
            "repositoryUrl": repository["repositoryUri"],
            "imageTagMutability": repository.get("imageTagMutability", "MUTABLE"),
            "imageScanningConfiguration": {"scanOnPush": scanning.get("scanOnPush", False)},
            "tags": from_tag_list(tags),
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        if old.get("imageTagMutability") != new["imageTagMutability"]:
            self.api.put_image_tag_mutability(
                repositoryName=identity, imageTagMutability=new["imageTagMutability"]
            )
        if _scans(old) != _scans(new):
            self.api.put_image_scanning_configuration(
                repositoryName=identity, imageScanningConfiguration={"scanOnPush": _scans(new)}
            )
        repository = self.api.describe_repositories(repositoryNames=[identity])["repositories"][0]
        arn = repository["repositoryArn"]
        change_tags(
            old,
            new,
            tag=lambda tags: self.api.tag_resource(resourceArn=arn, tags=to_tag_list(tags)),
            untag=lambda keys: self.api.untag_resource(resourceArn=arn, tagKeys=keys),
        )

    def delete(self, identity: str, state: Bag) -> None:
        force = bool(state.get("forceDelete"))
        self.api.delete_repository(repositoryName=identity, force=force)


def _scans(inputs: Bag) -> bool:
    return bool((inputs.get("imageScanningConfiguration") or {}).get("scanOnPush"))


RESOURCES: Final = (Repository,)
