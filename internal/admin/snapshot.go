package admin

import (
	"cascadekv/cascade"
	"cascadekv/dht"
)

// Snapshot is what CASCADE.STATS and the admin side report.
type Snapshot struct {
	cascade.Stats
	Version       string  `json:"version"`
	UptimeSeconds float64 `json:"uptime_seconds"`
	Connections   int     `json:"connections"`
	Commands      uint64  `json:"commands"`
	Polled        uint64  `json:"polled_commands"` // of these, answered by the sockets' poller
	Dropped       uint64  `json:"dropped"`         // SETs answered without storing
	ZeroCopy      uint64  `json:"referred_bytes"`  // of values that were sent by reference
	TCP           string  `json:"tcp,omitempty"`
	Admin         string  `json:"admin,omitempty"`

	Held     Held       `json:"held"`
	InFlight InFlight   `json:"in_flight"`
	Shared   Shared     `json:"shared"`
	Peers    *dht.Stats `json:"peers,omitempty"` // of a rank that is not alone
}

// Held is what the connections of all clients hold now. A connection that has
// ended holds nothing: its part is given back before it counts as closed.
// Leases, which end with their connection too, are the store's to count.
type Held struct {
	Bytes   int64 `json:"bytes"` // of the arena, by views, pins and stages, as their limits count them
	Views   int64 `json:"views"` // asked for, or taken by clients themselves
	Pins    int64 `json:"pins"`
	Stages  int64 `json:"stages"`
	Regions int64 `json:"regions"`
	Jobs    int   `json:"jobs"` // that wait or run
}

// Shared is the cost of memory that clients share, and its limits, 0 for none.
type Shared struct {
	Descriptors     int   `json:"descriptors"`
	DescriptorsMost int   `json:"descriptors_most"`
	Address         int64 `json:"address_bytes"`
	AddressMost     int64 `json:"address_bytes_most"`
}

// InFlight is what replies that clients have not read take, and values and
// commands that have not arrived as a whole.
type InFlight struct {
	Bytes    int64 `json:"bytes"`           // in send buffers, not read yet, overhead included
	Buffers  int64 `json:"buffers"`         // size of the wide send buffers
	Limit    int64 `json:"limit"`           // of Buffers
	Wide     int64 `json:"wide"`            // connections with a wide send buffer
	Stalled  int64 `json:"stalled"`         // bytes of values that replies borrow which are not read
	Arriving int64 `json:"arriving"`        // bytes of memory, of large commands that arrive
	Transit  int64 `json:"transit"`         // bytes of tiers, of values that arrive
	Strange  int   `json:"unauthenticated"` // connections that have not authenticated
}

// Counters are what /metrics has of a server beside its Snapshot.
type Counters struct {
	Accepted, Refused uint64 // connections
	AuthFailures      uint64
	ProtocolErrors    uint64
	ReloadOK          bool // the configuration was taken when it was read last
	Stored, Loaded    Moved
}

// Moved counts blocks that were copied between regions and the store.
type Moved struct{ Blocks, Bytes uint64 }
