package cli

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestDurationVar(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 3 * time.Second, "5": 5 * time.Second, "0.5": time.Second / 2, "2m": 2 * time.Minute, "-1": 0, "soon": 0} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		var d time.Duration
		DurationVar(f, &d, "ttl", 3*time.Second, "")
		var args []string
		if text != "" {
			args = []string{"--ttl", text}
		}
		if err := f.Parse(args); (err != nil) != (want == 0) || err == nil && d != want {
			t.Errorf("--ttl %q is %v, %v, want %v", text, d, err, want)
		}
	}
}
