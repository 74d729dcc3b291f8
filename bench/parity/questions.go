package main

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// Question is one line of `parity -questions`; the answer is one line.
//
// The answer to "schedule" is that of a world. The answer to "disrupt" has the commands of one pass:
// those of the first of Karpenter's methods that finds any. The answer to "untilSteady" has all
// commands until a pass finds none; each command is executed before the next pass.
type Question struct {
	Op    string          `json:"op"`
	World json.RawMessage `json:"world"`
	// Now is the current time of the world.
	Now time.Time `json:"now"`
	// Patient stops the clock during a pass, so that single-node consolidation evaluates every node
	// and not only as many as it can within its limit of three minutes.
	Patient bool `json:"patient"`
}

func answered(raw []byte) (any, error) {
	var question Question
	if err := json.Unmarshal(raw, &question); err != nil {
		return nil, fmt.Errorf("not a question: %w", err)
	}
	if question.Now.IsZero() {
		question.Now = time.Now()
	}
	world, instanceTypes, err := read(question.World, "the question")
	if err != nil {
		return nil, err
	}
	clk := &simulated{Clock: clocktesting.NewFakeClock(question.Now)}
	switch question.Op {
	case "schedule":
		return solve(world, instanceTypes, clk)
	case "disrupt", "untilSteady":
		if err := asAdmitted(world, question.World); err != nil {
			return nil, err
		}
		clk.runs = !question.Patient
		return disrupted(world, instanceTypes, clk, question)
	}
	return nil, fmt.Errorf("op %q is none of schedule, disrupt, untilSteady", question.Op)
}

// simulated is a clock on which every wait ends at once. While it runs, the time that a pass takes
// elapses on it too, so that Karpenter's own limits apply.
type simulated struct {
	clock.Clock

	runs  bool
	began time.Time
}

func (s *simulated) begin() { s.began = time.Now() }

func (s *simulated) fake() *clocktesting.FakeClock { return s.Clock.(*clocktesting.FakeClock) }

// rest ends a pass: it advances the clock by the time that the pass took and one second more, so that
// no two changes of the cluster have the same time.
func (s *simulated) rest() {
	s.fake().SetTime(s.Now().Add(time.Second))
	s.began = time.Time{}
}

// Now returns the time at the start plus all waits.
func (s *simulated) Now() time.Time {
	if !s.runs || s.began.IsZero() {
		return s.Clock.Now()
	}
	return s.Clock.Now().Add(time.Since(s.began))
}

// Since returns the time that has elapsed on this clock.
func (s *simulated) Since(moment time.Time) time.Duration { return s.Now().Sub(moment) }

// After fires at once.
func (s *simulated) After(wait time.Duration) <-chan time.Time {
	s.fake().Step(wait)
	over := make(chan time.Time, 1)
	over <- s.Now()
	return over
}
