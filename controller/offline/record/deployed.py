"""The settings of the controller in a live cluster, read from its Deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.apis.kinds import Kind
from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apiserver.errors import ApiError, UnavailableError
from controller.apiserver.port import ApiServer
from controller.offline.commandline import Progress
from controller.options import SETTINGS, Options

SELECTOR = "app.kubernetes.io/name=karpenter,app.kubernetes.io/instance"
"""Label selector of the controller's Deployment."""

CONTAINER = "controller"
"""Name of the controller's container. In a Deployment with one container any name is accepted."""

PLACEHOLDER = "cluster"
"""The cluster's name if it is not set; no recorded value depends on it."""


class EnvironmentVariable(Wire):
    """An environment variable of a container: its value, or the source of the value."""

    name: str = ""
    value: str = ""
    value_from: dict[str, Any] | None = None


class ControllerContainer(Wire):
    """A container, reduced to its configuration."""

    name: str = ""
    args: list[str] = []
    env: list[EnvironmentVariable] = []


class ControllerPodSpec(Wire):
    """The containers of the pods."""

    containers: list[ControllerContainer] = []


class ControllerPodTemplate(Wire):
    """The template of the pods."""

    spec: ControllerPodSpec = ControllerPodSpec()


class ControllerDeploymentSpec(Wire):
    """The spec of the Deployment."""

    template: ControllerPodTemplate = ControllerPodTemplate()


class ControllerDeployment(KubernetesObject):
    """A Deployment, reduced to its containers' arguments and environment."""

    spec: ControllerDeploymentSpec = ControllerDeploymentSpec()


CONTROLLER_DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments", True, ControllerDeployment)


async def controller_options(
    api: ApiServer, argv: Sequence[str], environ: Mapping[str, str], report: Callable[[str], None]
) -> Options:
    """Return the settings of the cluster's controller; flags in `argv` take precedence.

    If the controller's Deployment is missing, ambiguous or not readable, the settings are read from
    `environ`, and `report` is called with a warning.

    Raises:
        UnavailableError: the API server does not answer.
        OptionsError: a flag is unknown, or a value is not allowed.

    """
    container = await controller_container(api, report)
    if container is None:
        return Options.parse(argv, {"CLUSTER_NAME": PLACEHOLDER, **environ})
    settings = {setting.variable for setting in SETTINGS}
    for variable in container.env:
        source = {"secretKeyRef", "configMapKeyRef"}.intersection(variable.value_from or ())
        if source and variable.name in settings:
            report(
                f"{variable.name} comes from a {source.pop()} of the controller's Deployment and "
                "is not read: its default is used unless it is given as a flag"
            )
    variables = {variable.name: variable.value for variable in container.env}
    return Options.parse([*container.args, *argv], {"CLUSTER_NAME": PLACEHOLDER, **variables})


async def controller_container(
    api: ApiServer, report: Callable[[str], None]
) -> ControllerContainer | None:
    """Return the container of the controller; None if it is missing, ambiguous or not readable.

    `report` is called with the name of its Deployment, or with a warning.

    Raises:
        UnavailableError: the API server does not answer.

    """
    instead = "settings are read from this shell's environment"
    try:
        deployments = await api.list(CONTROLLER_DEPLOYMENT, label_selector=SELECTOR)
    except UnavailableError:
        raise
    except ApiError as error:
        report(f"the controller's Deployment cannot be read, {instead}: {error}")
        return None
    found = [
        (deployment, container)
        for deployment in deployments
        if (containers := deployment.spec.template.spec.containers)
        for container in containers
        if container.name == CONTAINER or len(containers) == 1
    ]
    names = [deployment.metadata.key for deployment, _ in found]
    if len(found) == 1:
        report(Progress(f"settings: Deployment {names[0]}"))
        return found[0][1]
    if found:
        report(f"{len(found)} Deployments may be the controller's ({', '.join(names)}), {instead}")
    else:
        report(f"no Deployment has the label app.kubernetes.io/name=karpenter, {instead}")
    return None
