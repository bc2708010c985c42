package server

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admin"
	"cascadekv/internal/memlimit"
	"cascadekv/internal/region"
)

const (
	// regionAddress bounds the address space of all regions, a quarter of what a
	// process has on the machines with the least, and no more than
	// addressShare of RLIMIT_AS.
	regionAddress = 32 << 40
	addressShare  = 4

	// mappingShare is the part of vm.max_map_count that regions may take, and
	// usualMappings what that is where nobody has changed it.
	mappingShare  = 4
	usualMappings = 65530

	// tablesShare is the part of the machine's memory that the page tables of
	// regions may take. A region that is as large as the memory takes 1/512.
	tablesShare = 16

	// connShare is the part of all of that which the regions of one connection
	// may take.
	connShare = 2
)

// regionBudget bounds what the regions of all clients cost, and the other files
// that clients share with the rank. It may be used by any goroutine.
type regionBudget struct {
	memory int64 // of the machine

	mu    sync.Mutex
	limit region.Cost
	used  region.Cost
}

// newRegionBudget is the budget of this process on this machine.
func newRegionBudget() *regionBudget {
	b := &regionBudget{memory: memlimit.Machine()}
	b.limit = region.Cost{Mappings: maxMappings() / mappingShare, Address: regionAddress, Tables: max(b.memory/tablesShare, 16<<20)}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &l) == nil && l.Cur != unix.RLIM_INFINITY {
		b.limit.Address = min(b.limit.Address, int64(min(l.Cur, 1<<62))/addressShare)
	}
	return b
}

// setDescriptors bounds the descriptors from here on; 0 is no bound.
func (b *regionBudget) setDescriptors(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit.Descriptors = n
}

// take counts what a connection adds to what it has, unless that is more than it
// or all connections may have. The error matches region.ErrBudget.
func (b *regionBudget) take(has, add region.Cost) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := region.Cost{
		Mappings: b.limit.Mappings / connShare, Descriptors: b.limit.Descriptors,
		Address: b.limit.Address / connShare, Tables: b.limit.Tables / connShare,
	}
	if err := has.Plus(add).Within(most); err != nil {
		return fmt.Errorf("this connection: %w", err)
	}
	sum := b.used.Plus(add)
	if err := sum.Within(b.limit); err != nil {
		return fmt.Errorf("all connections: %w", err)
	}
	b.used = sum
	return nil
}

// force counts what is there already.
func (b *regionBudget) force(c region.Cost) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = b.used.Plus(c)
}

func (b *regionBudget) give(c region.Cost) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = b.used.Minus(c)
}

func (b *regionBudget) shared() admin.Shared {
	b.mu.Lock()
	defer b.mu.Unlock()
	return admin.Shared{
		Descriptors: b.used.Descriptors, DescriptorsMost: b.limit.Descriptors,
		Address: b.used.Address, AddressMost: b.limit.Address,
	}
}

// oneFile is what a file costs that a connection shares with its client beside
// its regions.
var oneFile = region.Cost{Descriptors: 1, Mappings: 1}

// maxMappings is how many mappings a process may have.
func maxMappings() int {
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if n, bad := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil && bad == nil && n > 0 {
		return n
	}
	return usualMappings
}
