package trace

// Arrivals are the times of a Poisson process: the same ones for the same seed
// on any machine, and for another rate the same ones scaled. It is not safe for
// concurrent use.
type Arrivals struct {
	rng random
	gap int64 // mean, microseconds
	at  int64 // of the next, microseconds
}

// NewArrivals returns arrivals of a mean rate per second, between 0.001 and
// 10,000. The first is at 0.
func NewArrivals(seed uint64, perSecond float64) *Arrivals {
	return &Arrivals{rng: newRandom(seed, 0), gap: int64(1e6 / perSecond)}
}

// Next returns the time of the next arrival in milliseconds.
func (a *Arrivals) Next() int64 {
	at := a.at / 1000
	a.at += a.rng.spread(a.gap)
	return at
}
