package policy

// Demotion is where a victim of a memory tier goes.
type Demotion uint8

const (
	ToCold Demotion = iota // to the cold tier
	ToNext                 // to the next memory tier, where there is one
)

// String returns "cold" or "next".
func (d Demotion) String() string {
	if d == ToNext {
		return "next"
	}
	return "cold"
}

// DemotionOf returns where CASCADE Algorithm 1, lines 6-10, sends a victim:
// shared prefixes to the next memory tier, everything else to the cold tier.
// It is a pure function, safe for concurrent use.
func DemotionOf(m Meta) Demotion {
	if shared(m) {
		return ToNext
	}
	return ToCold
}

// shared is the condition that Algorithm 1 and equation 4 have in common.
func shared(m Meta) bool { return m.Prefix || m.Refs > 1 }
