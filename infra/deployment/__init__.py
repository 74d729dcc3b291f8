"""What a stack deploys into the cluster: the controller with its image, and the CRDs.

* `image`              assembles the controller's image and pushes it to ECR
* `imagelayer`         the files that the image adds to its base
* `imageregistry`      a client of registries of images
* `customresources`    installs the CRDs of `crds/`
* `controller`         the controller's Kubernetes objects
* `controllerobjects`  their names, and the check that no other tool's objects have them
* `manifests`          the same objects for Helm, Argo CD, Flux and kubectl
"""
