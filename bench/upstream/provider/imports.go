// Package provider pins the black-box suites of Karpenter's AWS provider: what their test files import.
package provider

import (
	_ "github.com/aws/karpenter-provider-aws/test/pkg/environment/aws"
	_ "github.com/onsi/ginkgo/v2"
	_ "github.com/onsi/gomega"
)
