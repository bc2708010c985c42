package residency

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"testing"

	"cascadekv/tiers"
)

// An error has one reason, also when it is wrapped; of two that match, the first in the list.
func TestReasons(t *testing.T) {
	for want, err := range map[string]error{
		"corrupt":     fmt.Errorf("segment: %w", tiers.ErrCorrupt),
		"deadline":    fmt.Errorf("%w: %w", tiers.ErrUnavailable, context.DeadlineExceeded),
		"cancelled":   errors.Join(tiers.ErrNotFound, context.Canceled),
		"closed":      ErrClosed,
		"no_room":     fmt.Errorf("%w: 5 bytes", ErrNoRoom),
		"gone":        fmt.Errorf("%w: %w", tiers.ErrUnavailable, fs.ErrNotExist),
		"unavailable": tiers.ErrUnavailable,
	} {
		if got := ReasonOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	if ReasonOf(nil) != "unavailable" || ReasonOf(ErrMiss) != "gone" {
		t.Errorf("%s, %s", ReasonOf(nil), ReasonOf(ErrMiss))
	}
}

// What is counted adds up, what was returned does not change any more, and who has given
// up has lost nothing.
func TestLosses(t *testing.T) {
	var l Losses
	if c := l.Counts(); len(c) != 0 {
		t.Errorf("%v", c)
	}
	l.Add(StepPin, "corrupt", 2)
	first := l.Counts()
	l.Add(StepPin, "corrupt", 1)
	l.Add(StepPin, "unavailable", 0)
	l.AddError(StepSegment, context.DeadlineExceeded, 4)
	l.AddError(StepSegment, context.Canceled, 5)
	want := LossCounts{"pin": {"corrupt": 3}, "segment": {"deadline": 4}}
	if got := l.Counts(); !reflect.DeepEqual(got, want) || first["pin"]["corrupt"] != 2 {
		t.Errorf("%v, and before %v", got, first)
	}
	want.Merge(LossCounts{"pin": {"corrupt": 1}, "copy": {"size": 1}})
	if want["pin"]["corrupt"] != 4 || want["copy"]["size"] != 1 {
		t.Errorf("%v", want)
	}
}
