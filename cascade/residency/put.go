package residency

// Rejected counts a put that was dropped for want of room.
func (c *Counters) Rejected() {
	c.state.Mu.Lock()
	defer c.state.Mu.Unlock()
	c.Stats.Rejected++
}
