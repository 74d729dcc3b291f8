import * as joiner from "@pulumi/joiner";

const autoscaler = new joiner.infra.Joiner("joiner", {
    cluster: { name: "my-cluster", region: "us-west-2" },
    image: "registry.example.com/joiner:1",
    settings: { BATCH_IDLE_DURATION: "2s" },
    tags: { team: "platform" },
});
export const nodeRole = autoscaler.nodeRoleName;
export const interruptionQueue = autoscaler.interruptionQueue;
