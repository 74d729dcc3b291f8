package main

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// Question is one line of `parity -questions`, and is answered by one line.
//
// "schedule" is answered as a world is; "disrupt" with the commands of one pass, of the first of
// Karpenter's methods that finds something; "untilSteady" with all commands until nothing more
// comes, each carried out before the next pass.
type Question struct {
	Op    string          `json:"op"`
	World json.RawMessage `json:"world"`
	// Now is the moment at which it is asked.
	Now time.Time `json:"now"`
	// Seconds is how long a pass may take, beside Karpenter's own limits; 0 sets none.
	Seconds float64 `json:"seconds"`
	// Patient stops the clock while a pass lasts, so that consolidation of single nodes sees them
	// all, however long that takes, and not as many as it sees in its three minutes.
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

// simulated is a clock on which what is waited for is over at once. While it runs, the time that
// a pass takes elapses on it too, so that the limits which Karpenter sets itself hold.
type simulated struct {
	clock.Clock

	runs  bool
	began time.Time
}

func (s *simulated) begin() { s.began = time.Now() }

func (s *simulated) fake() *clocktesting.FakeClock { return s.Clock.(*clocktesting.FakeClock) }

// rest ends a pass: what it took has passed, and a moment more, so that no two changes of the
// cluster fall together.
func (s *simulated) rest() {
	s.fake().SetTime(s.Now().Add(time.Second))
	s.began = time.Time{}
}

// Now is the moment it began at, and what was waited for.
func (s *simulated) Now() time.Time {
	if !s.runs || s.began.IsZero() {
		return s.Clock.Now()
	}
	return s.Clock.Now().Add(time.Since(s.began))
}

// Since is the time that has passed here.
func (s *simulated) Since(moment time.Time) time.Duration { return s.Now().Sub(moment) }

// After is over at once.
func (s *simulated) After(wait time.Duration) <-chan time.Time {
	s.fake().Step(wait)
	over := make(chan time.Time, 1)
	over <- s.Now()
	return over
}
