package others

import (
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
)

// ServedFrom names the tier that would serve a located block.
func (x *Exchange) ServedFrom(copies []directory.Statement) string {
	if copies[0].Memory != nil || x.state.Cold == nil {
		return residency.RemoteTier
	}
	return x.state.ColdName()
}
