package mpi

import (
	"fmt"

	"cascadekv/dht/mpi"
)

// Verdict is what the MPI under a fabric can do, for doctor and statistics.
type Verdict struct {
	MPI    mpi.Version `json:"mpi"`
	Thread string      `json:"thread"` // "multiple", or less
	RMA    string      `json:"rma"`    // whether one-sided reads of a sleeping rank are served, or why that is unknown
}

// String is one line.
func (v Verdict) String() string {
	return fmt.Sprintf("%v, thread level %s, one-sided reads: %s", v.MPI, v.Thread, v.RMA)
}
