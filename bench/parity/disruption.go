package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"syscall"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	requirements "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/state/cost"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// fruitless is the number of consecutive passes without a command after which a cluster counts as
// steady. Karpenter may not consider it consolidated, because validation or a budget rejected a
// command.
const fruitless = 3

// Disruption is the result of Karpenter's methods on a cluster; prices are in $/h.
type Disruption struct {
	Commands   []Command `json:"commands"`
	CostBefore float64   `json:"costBefore"`
	CostAfter  float64   `json:"costAfter"`
	Evictions  int       `json:"evictions"`
	// Seconds is the time of all passes together, LastPassSeconds that of the last.
	Seconds             float64 `json:"seconds"`
	FirstCommandSeconds float64 `json:"firstCommandSeconds"`
	LastPassSeconds     float64 `json:"lastPassSeconds"`
	// CPUSeconds is the CPU time of the passes, which does not depend on other load.
	CPUSeconds   float64 `json:"cpuSeconds"`
	SetupSeconds float64 `json:"setupSeconds"`
	Passes       int     `json:"passes"`
}

// Command is a decision: the disrupted nodes, their replacements, and where pods go.
type Command struct {
	Reason        string              `json:"reason"`
	Method        string              `json:"method"`
	Nodes         []string            `json:"nodes"`
	NewNodes      []NamedNode         `json:"newNodes"`
	ExistingNodes map[string][]string `json:"existingNodes"`
	// Homeless pods are evicted without a node to go to.
	Homeless  []string `json:"homeless,omitempty"`
	Saving    float64  `json:"saving"`
	Evictions int      `json:"evictions"`
}

// NamedNode is a node to launch: the cheapest that its NodeClaim allows.
type NamedNode struct {
	Name         string `json:"name"`
	InstanceType string `json:"instanceType"`
	Zone         string `json:"zone"`
	CapacityType string `json:"capacityType"`
	NewNode
}

// asAdmitted sets what the API server and kube-scheduler would have set: the defaults of NodePools,
// and the condition of unschedulable pods.
func asAdmitted(world World, raw json.RawMessage) error {
	var stated struct {
		NodePools []struct {
			Spec struct {
				Disruption struct {
					ConsolidateAfter *string `json:"consolidateAfter"`
				} `json:"disruption"`
			} `json:"spec"`
		} `json:"nodePools"`
	}
	if err := json.Unmarshal(raw, &stated); err != nil {
		return err
	}
	for i, pool := range world.NodePools {
		chosen := &pool.Spec.Disruption
		if stated.NodePools[i].Spec.Disruption.ConsolidateAfter == nil {
			chosen.ConsolidateAfter = v1.MustParseNillableDuration("0s")
		}
		if chosen.ConsolidationPolicy == "" {
			chosen.ConsolidationPolicy = v1.ConsolidationPolicyWhenEmptyOrUnderutilized
		}
		if chosen.Budgets == nil {
			chosen.Budgets = []v1.Budget{{Nodes: "10%"}}
		}
	}
	for _, pod := range world.Pods {
		if pod.Spec.NodeName == "" {
			wait(pod)
		}
	}
	return nil
}

func wait(pod *corev1.Pod) {
	pod.Spec.NodeName = ""
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
}

// course is a cluster that is disrupted pass by pass.
type course struct {
	*engine

	clk     *simulated
	queue   *disruption.Queue
	cost    *cost.ClusterCost
	methods []disruption.Method
	made    int
}

func disrupted(
	world World, instanceTypes []*cloudprovider.InstanceType, clk *simulated, question Question,
) (*Disruption, error) {
	setup := time.Now()
	engine, err := prepared(world, instanceTypes, clk, "disruption")
	if err != nil {
		return nil, err
	}
	queue := disruption.NewQueue(engine.kube, engine.recorder, engine.mirror, clk, engine.provisioner)
	c := &course{
		engine: engine, clk: clk, queue: queue,
		cost: cost.NewClusterCost(engine.ctx, engine.provider, engine.kube),
		methods: disruption.NewMethods(
			engine.ctx, clk, engine.mirror, engine.kube, engine.provisioner, engine.provider, engine.recorder, queue),
	}
	for _, claim := range world.NodeClaims {
		if err := c.cost.UpdateNodeClaim(c.ctx, claim); err != nil {
			return nil, err
		}
	}
	answer := &Disruption{Commands: []Command{}, SetupSeconds: time.Since(setup).Seconds()}
	answer.CostBefore = c.total()
	for idle := 0; idle < fruitless; {
		found, err := c.timed(answer)
		if err != nil {
			return nil, err
		}
		for _, command := range found {
			written, err := c.carriedOut(command)
			if err != nil {
				return nil, err
			}
			answer.Commands = append(answer.Commands, written)
			answer.Evictions += written.Evictions
		}
		if question.Op == "disrupt" {
			break
		}
		idle++
		if len(found) > 0 {
			idle = 0
		} else if c.consolidated() {
			break
		}
	}
	answer.CostAfter = c.total()
	return answer, nil
}

func (c *course) timed(answer *Disruption) ([]disruption.Command, error) {
	c.clk.begin()
	began, spent := time.Now(), spentByCPU()
	found, err := c.pass()
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	answer.LastPassSeconds = time.Since(began).Seconds()
	answer.CPUSeconds += spentByCPU() - spent
	c.clk.rest()
	answer.Passes++
	answer.Seconds += answer.LastPassSeconds
	if len(found) > 0 && len(answer.Commands) == 0 {
		answer.FirstCommandSeconds = answer.Seconds
	}
	return found, err
}

// spentByCPU returns the CPU time of this process, in seconds.
func spentByCPU() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return (time.Duration(usage.Utime.Nano()) + time.Duration(usage.Stime.Nano())).Seconds()
}

// pass runs the methods in their order, as Karpenter's controller does, up to the first that finds a
// command.
func (c *course) pass() ([]disruption.Command, error) {
	for _, method := range c.methods {
		candidates, totals, err := disruption.GetCandidatesWithTotals(
			c.ctx, c.mirror, c.kube, c.recorder, c.clk, c.provider,
			method.ShouldDisrupt, method.Class(), c.queue, c.cost)
		if err != nil {
			return nil, fmt.Errorf("candidates: %w", err)
		}
		if len(candidates) == 0 {
			continue
		}
		if setter, ok := method.(disruption.NodePoolTotalsSetter); ok {
			setter.SetNodePoolTotals(totals)
		}
		budgets, err := disruption.BuildDisruptionBudgetMapping(
			c.ctx, c.mirror, c.clk, c.kube, c.provider, c.recorder, method.Reason())
		if err != nil {
			return nil, fmt.Errorf("budgets: %w", err)
		}
		commands, err := method.ComputeCommands(c.ctx, budgets, candidates...)
		if err != nil {
			return nil, fmt.Errorf("%T: %w", method, err)
		}
		var found []disruption.Command
		for _, command := range commands {
			if command.Decision() != disruption.NoOpDecision {
				command.Method = method
				found = append(found, command)
			}
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, nil
}

// consolidated is whether every consolidation method considers the cluster consolidated.
func (c *course) consolidated() bool {
	for _, method := range c.methods {
		if one, ok := method.(interface{ IsConsolidated() bool }); ok && !one.IsConsolidated() {
			return false
		}
	}
	return true
}

// carriedOut executes a command: it removes the nodes with their daemons, adds the replacements as
// initialized nodes, and binds the pods where the simulation placed them.
func (c *course) carriedOut(command disruption.Command) (Command, error) {
	gone := sets.New[string]()
	written := Command{
		Reason: string(command.Reason()), Method: fmt.Sprintf("%T", command.Method)[len("*disruption."):],
		Nodes: []string{}, NewNodes: []NamedNode{}, ExistingNodes: map[string][]string{}}
	before := c.total()
	for _, candidate := range command.Candidates {
		gone.Insert(candidate.Name())
		written.Nodes = append(written.Nodes, candidate.Name())
	}
	moving := sets.New[types.NamespacedName]()
	for name := range gone {
		moving.Insert(c.kube.pods.byNode[name]...)
	}
	place := map[types.NamespacedName]string{}
	for _, node := range command.Results.ExistingNodes {
		for _, pod := range node.Pods {
			if key := client.ObjectKeyFromObject(pod); moving.Has(key) {
				place[key] = node.Name()
				written.ExistingNodes[node.Name()] = append(written.ExistingNodes[node.Name()], key.String())
			}
		}
		sort.Strings(written.ExistingNodes[node.Name()])
	}
	for _, replacement := range command.Replacements {
		node, err := c.launched(replacement.NodeClaim)
		if err != nil {
			return written, err
		}
		for _, pod := range replacement.Pods {
			place[client.ObjectKeyFromObject(pod)] = node.Name
		}
		written.NewNodes = append(written.NewNodes, node)
	}
	for key := range moving {
		pod := c.kube.pods.rows[key]
		if place[key] != "" {
			written.Evictions++
		} else if podutils.IsReschedulable(pod) {
			written.Evictions++
			written.Homeless = append(written.Homeless, key.String())
		}
	}
	sort.Strings(written.Homeless)
	if err := c.moved(moving, place); err != nil {
		return written, err
	}
	for _, candidate := range command.Candidates {
		c.ended(candidate.Node.Name, candidate.NodeClaim)
	}
	written.Saving = before - c.total()
	return written, nil
}

// moved binds pods to their new nodes. Without one, a daemon is deleted and another pod is pending.
func (c *course) moved(moving sets.Set[types.NamespacedName], place map[types.NamespacedName]string) error {
	for key := range place {
		moving.Insert(key)
	}
	for key := range moving {
		pod := c.kube.pods.rows[key].DeepCopy()
		c.mirror.DeletePod(key)
		switch {
		case place[key] != "":
			pod.Spec.NodeName = place[key]
			pod.Status = corev1.PodStatus{
				Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: c.clk.Now()}}
		case podutils.IsReschedulable(pod):
			wait(pod)
		default:
			c.kube.pods.remove(key)
			continue
		}
		c.kube.pods.put(pod)
		if err := c.mirror.UpdatePod(c.ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

func (c *course) ended(node string, claim *v1.NodeClaim) {
	c.kube.nodes.remove(types.NamespacedName{Name: node})
	c.kube.nodeClaims.remove(client.ObjectKeyFromObject(claim))
	c.mirror.DeleteNode(node)
	c.mirror.DeleteNodeClaim(claim.Name)
	_ = c.cost.DeleteNodeClaim(c.ctx, client.ObjectKeyFromObject(claim))
}

// launched returns the node that the cloud would launch: the cheapest that the NodeClaim allows,
// initialized, and old enough to be consolidatable.
func (c *course) launched(claim *scheduling.NodeClaim) (NamedNode, error) {
	pool := c.kube.nodePools.rows[types.NamespacedName{Name: claim.NodePoolName}]
	if len(claim.InstanceTypeOptions) == 0 { // a static pool leaves the choice to the cloud
		kinds, err := c.provider.GetInstanceTypes(c.ctx, pool)
		if err != nil {
			return NamedNode{}, err
		}
		claim.InstanceTypeOptions = kinds
	}
	kind, offering := cheapest(claim)
	if kind == nil {
		return NamedNode{}, fmt.Errorf("nothing can be launched for a claim of %s", claim.NodePoolName)
	}
	found := NamedNode{
		InstanceType: kind.Name, Zone: offering.Zone(), CapacityType: offering.CapacityType(), NewNode: newNode(claim)}
	found.Price = offering.Price
	for found.Name == "" || c.kube.nodes.rows[types.NamespacedName{Name: found.Name}] != nil {
		c.made++
		found.Name = fmt.Sprintf("new-%05d", c.made)
	}
	wanted := claim.Requirements
	made := claim.ToNodeClaim()
	made.Name, made.GenerateName, made.UID = found.Name, "", types.UID("uid-"+found.Name)
	made.CreationTimestamp = metav1.Time{Time: c.clk.Now()}
	for key, requirement := range kind.Requirements {
		if wanted.Has(key) {
			requirement = requirement.Intersection(wanted.Get(key))
		}
		if value := requirement.Any(); value != "" {
			made.Labels[key] = value
		}
	}
	for key, requirement := range offering.Requirements {
		made.Labels[key] = requirement.Any()
	}
	made.Labels[corev1.LabelHostname] = found.Name
	made.Status.ProviderID, made.Status.NodeName = "new:///"+found.Name, found.Name
	made.Status.Capacity, made.Status.Allocatable = kind.Capacity, kind.Allocatable()
	settled := c.clk.Now()
	if after := pool.Spec.Disruption.ConsolidateAfter.Duration; after != nil {
		settled = settled.Add(-*after)
	}
	conditions := made.StatusConditions(status.WithClock(clocktesting.NewFakeClock(settled)))
	for _, condition := range []string{
		v1.ConditionTypeLaunched, v1.ConditionTypeRegistered, v1.ConditionTypeInitialized, v1.ConditionTypeConsolidatable,
	} {
		conditions.SetTrue(condition)
	}
	return found, c.there(made)
}

// there adds a NodeClaim and its node to the state.
func (c *course) there(claim *v1.NodeClaim) error {
	labels := map[string]string{v1.NodeRegisteredLabelKey: "true", v1.NodeInitializedLabelKey: "true"}
	for key, value := range claim.Labels {
		labels[key] = value
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: claim.Name, UID: claim.UID, Labels: labels, CreationTimestamp: claim.CreationTimestamp},
		Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID, Taints: claim.Spec.Taints},
		Status: corev1.NodeStatus{
			Capacity: claim.Status.Capacity, Allocatable: claim.Status.Allocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	c.kube.nodeClaims.put(claim)
	c.kube.nodes.put(node)
	c.mirror.UpdateNodeClaim(claim)
	c.mirror.NodePoolState.ReleaseNodeCount(claim.Labels[v1.NodePoolLabelKey], 1)
	if err := c.mirror.UpdateNode(c.ctx, node); err != nil {
		return err
	}
	return c.cost.UpdateNodeClaim(c.ctx, claim)
}

func cheapest(claim *scheduling.NodeClaim) (*cloudprovider.InstanceType, *cloudprovider.Offering) {
	var kind *cloudprovider.InstanceType
	var best *cloudprovider.Offering
	for _, one := range claim.InstanceTypeOptions {
		if one.Requirements.Intersects(claim.Requirements) != nil {
			continue
		}
		open := one.Offerings.Available().Compatible(claim.Requirements)
		if len(open) == 0 {
			continue
		}
		offering := open.Cheapest()
		if best == nil || offering.Price < best.Price || (offering.Price == best.Price && one.Name < kind.Name) {
			kind, best = one, offering
		}
	}
	return kind, best
}

// total returns the cost of all nodes whose offering is known by their labels.
func (c *course) total() float64 {
	kinds := map[string]map[string]*cloudprovider.InstanceType{}
	for _, pool := range c.kube.nodePools.rows {
		kinds[pool.Name] = map[string]*cloudprovider.InstanceType{}
		found, err := c.provider.GetInstanceTypes(c.ctx, pool)
		if err != nil {
			continue
		}
		for _, one := range found {
			kinds[pool.Name][one.Name] = one
		}
	}
	sum := 0.0
	for node := range c.mirror.Nodes() {
		labels := node.Labels()
		kind := kinds[labels[v1.NodePoolLabelKey]][labels[corev1.LabelInstanceTypeStable]]
		if kind == nil {
			continue
		}
		if open := kind.Offerings.Compatible(requirements.NewLabelRequirements(labels)); len(open) > 0 {
			sum += open.Cheapest().Price
		}
	}
	return sum
}
