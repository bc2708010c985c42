package transfer

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"cascadekv/internal/memlimit"
	"cascadekv/internal/region"
)

const (
	// RegionAddress bounds the address space of all regions, a quarter of what a
	// process has on the machines with the least, and no more than
	// addressShare of RLIMIT_AS.
	RegionAddress = 32 << 40
	addressShare  = 4

	// mappingShare is the part of vm.max_map_count that regions may take, and
	// usualMappings what that is where nobody has changed it.
	mappingShare  = 4
	usualMappings = 65530

	// tablesShare is the part of the machine's memory that the page tables of
	// regions may take. A region that is as large as the memory takes 1/512.
	tablesShare = 16

	// pinnedShare is the part of the machine's memory that rings may take.
	pinnedShare = 4

	// connShare is the part of all of that which the regions of one connection
	// may take.
	connShare = 2
)

// Budget bounds what the regions of all clients cost, and the other files
// that clients share with the rank. It may be used by any goroutine.
type Budget struct {
	memory int64 // of the machine

	mu struct {
		sync.Mutex
		limit region.Cost
		used  region.Cost
	}
}

// newBudget is the budget of this process on this machine.
func newBudget() *Budget {
	b := &Budget{memory: memlimit.Machine()}
	b.mu.limit = region.Cost{Mappings: maxMappings() / mappingShare, Address: RegionAddress, Tables: max(b.memory/tablesShare, 16<<20), Pinned: b.memory / pinnedShare}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &l) == nil && l.Cur != unix.RLIM_INFINITY {
		b.mu.limit.Address = min(b.mu.limit.Address, int64(min(l.Cur, 1<<62))/addressShare)
	}
	return b
}

// SetDescriptors bounds the descriptors from here on; 0 is no bound.
func (b *Budget) SetDescriptors(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.limit.Descriptors = n
}

// Take counts what a connection adds to what it has, unless that is more than it
// or all connections may have. The error matches region.ErrBudget.
func (b *Budget) Take(has, add region.Cost) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := region.Cost{
		Mappings: b.mu.limit.Mappings / connShare, Descriptors: b.mu.limit.Descriptors,
		Address: b.mu.limit.Address / connShare, Tables: b.mu.limit.Tables / connShare,
		Pinned: b.mu.limit.Pinned / connShare,
	}
	if err := has.Plus(add).Within(most); err != nil {
		return fmt.Errorf("this connection: %w", err)
	}
	sum := b.mu.used.Plus(add)
	if err := sum.Within(b.mu.limit); err != nil {
		return fmt.Errorf("all connections: %w", err)
	}
	b.mu.used = sum
	return nil
}

// Force counts what is there already.
func (b *Budget) Force(c region.Cost) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used = b.mu.used.Plus(c)
}

// Give undoes Take or Force.
func (b *Budget) Give(c region.Cost) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used = b.mu.used.Minus(c)
}

// Usage returns what is taken, and the limits.
func (b *Budget) Usage() (used, limit region.Cost) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.used, b.mu.limit
}

// OneFile is what a file costs that a connection shares with its client beside
// its regions.
var OneFile = region.Cost{Descriptors: 1, Mappings: 1}

// maxMappings is how many mappings a process may have.
func maxMappings() int {
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if n, bad := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil && bad == nil && n > 0 {
		return n
	}
	return usualMappings
}
