package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimit: the notice comes when the ranks still have time to drain, whenever the limit is moved or
// slurmctld does not answer, and never without a limit. A short job keeps half of its time.
func TestLimit(t *testing.T) {
	const notice = 5 * time.Minute
	errDown := errors.New("slurmctld is down")
	for name, c := range map[string]struct {
		ask    func(at time.Duration) (end time.Duration, err error) // by the time since the launch; 0: no limit
		notice time.Duration                                         // 0: none
		words  []string
	}{
		"a limit":        {func(time.Duration) (time.Duration, error) { return 4 * time.Hour, nil }, 4*time.Hour - notice, []string{"5m0s before that", "is asked to end"}},
		"no limit":       {func(time.Duration) (time.Duration, error) { return 0, nil }, 0, nil},
		"a short job":    {func(time.Duration) (time.Duration, error) { return 3 * time.Minute, nil }, 90 * time.Second, []string{"1m30s before that"}},
		"nearly no time": {func(time.Duration) (time.Duration, error) { return time.Second, nil }, time.Second / 2, nil},
		"it is past":     {func(time.Duration) (time.Duration, error) { return -time.Second, nil }, 1, []string{"is asked to end"}},
		"prolonged": {func(at time.Duration) (time.Duration, error) {
			if at < 40*time.Minute {
				return time.Hour, nil
			}
			return 2 * time.Hour, nil
		}, 2*time.Hour - notice, nil},
		"shortened": {func(at time.Duration) (time.Duration, error) {
			if at < 40*time.Minute {
				return 4 * time.Hour, nil
			}
			return time.Hour, nil
		}, time.Hour - notice, nil},
		"set later": {func(at time.Duration) (time.Duration, error) {
			if at < 40*time.Minute {
				return 0, nil
			}
			return time.Hour, nil
		}, time.Hour - notice, nil},
		"no answer at the end": {func(at time.Duration) (time.Duration, error) {
			if at < 40*time.Minute {
				return time.Hour, nil
			}
			return 0, errDown
		}, time.Hour - notice, []string{"is not known: slurmctld is down"}},
		"no answer at first": {func(at time.Duration) (time.Duration, error) {
			if at < 40*time.Minute {
				return 0, errDown
			}
			return time.Hour, nil
		}, time.Hour - notice, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				l := limit{notice: notice, began: began, ask: func(context.Context) (time.Time, error) {
					end, err := c.ask(time.Since(began))
					if end == 0 {
						return time.Time{}, err
					}
					return began.Add(end), err
				}}
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				var words strings.Builder
				near := l.await(ctx, func(format string, args ...any) { fmt.Fprintf(&words, format+"\n", args...) })
				switch at := time.Since(began); {
				case near != (c.notice > 0):
					t.Errorf("a notice: %v", near)
				case near && (at > c.notice || at < c.notice-time.Second):
					t.Errorf("the notice comes after %v, want %v", at, c.notice)
				}
				for _, w := range c.words {
					if !strings.Contains(words.String(), w) {
						t.Errorf("%q is not in:\n%s", w, &words)
					}
				}
				if n := strings.Count(words.String(), "\n"); n > 4 {
					t.Errorf("%d lines:\n%s", n, &words)
				}
			})
		})
	}
}
