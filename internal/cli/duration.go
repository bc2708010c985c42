package cli

import (
	"time"

	"github.com/spf13/pflag"

	"cascadekv/internal/units"
)

// DurationVar is that of a FlagSet, for a span of time as the configuration has it: a plain
// number is seconds, and none is negative.
func DurationVar(f *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	f.Var((*units.Duration)(p), name, usage)
}
