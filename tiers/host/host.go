package host

import "cascadekv/tiers/memory"

// Name is the tier's word in statistics.
const Name = "host"

// Open maps bytes of anonymous memory.
func Open(bytes int64) (*memory.Tier, error) {
	return memory.Open(memory.Options{Name: Name, Bytes: bytes})
}
