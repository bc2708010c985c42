package policy

// Fall is where a victim of a memory tier goes.
type Fall uint8

const (
	FallCold Fall = iota // to the cold tier
	FallNext             // to the next memory tier, where there is one
)

// String returns "cold" or "next".
func (f Fall) String() string {
	if f == FallNext {
		return "next"
	}
	return "cold"
}

// Demote says where an evicted block falls (CASCADE Algorithm 1, lines 6-10):
// shared prefixes to the next memory tier, everything else to the cold tier.
// It is a pure function, safe for concurrent use.
func Demote(m Meta) Fall {
	if shared(m) {
		return FallNext
	}
	return FallCold
}

// shared is the condition that Algorithm 1 and equation 4 have in common.
func shared(m Meta) bool { return m.Prefix || m.Refs > 1 }
