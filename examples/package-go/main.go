package main

import (
	"example.com/pulumi-joiner/sdk/go/joiner/infra"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		autoscaler, err := infra.NewJoiner(ctx, "joiner", &infra.JoinerArgs{
			Cluster:  infra.EksClusterArgs{Name: pulumi.String("my-cluster"), Region: pulumi.String("us-west-2")},
			Image:    pulumi.String("registry.example.com/joiner:1"),
			Settings: map[string]string{"BATCH_IDLE_DURATION": "2s"},
			Tags:     pulumi.StringMap{"team": pulumi.String("platform")},
		})
		if err != nil {
			return err
		}
		ctx.Export("nodeRole", autoscaler.NodeRoleName)
		ctx.Export("interruptionQueue", autoscaler.InterruptionQueue)
		return nil
	})
}
