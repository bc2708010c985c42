package config

import "cascadekv/internal/descriptors"

// Descriptors are the files that a rank of this configuration would like to have
// open at a time, by kind.
func (c *Config) Descriptors() descriptors.Wishes {
	w := descriptors.Wishes{Connections: c.MaxConnections}
	if c.Socket != "" {
		w.Shared = descriptors.SharedWished
	}
	if c.Lustre.Dir != "" {
		w.Files = descriptors.Unbounded
	}
	if c.Peers.Fabric != "off" {
		w.Peers = descriptors.PeersWished
	}
	return w
}
