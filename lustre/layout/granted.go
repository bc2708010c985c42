package layout

import (
	"fmt"
	"strconv"
	"strings"
)

// Granted is the layout that a file has, or that a directory gives to new
// files. Objects are there when a file has them: not in a directory's default,
// and in a component only once something was written there.
type Granted struct {
	Composite  bool
	Generation uint32 // goes up with each change of a composite layout
	Mirrors    int    // copies of the file; 1 but for mirrored files
	Parts      []Part // one when the layout is not composite
}

// Part is one component with its objects. End, Count, Size and the rest are as
// in a request, but are what is: in a directory's default, 0 still means the
// file system's.
type Part struct {
	Component
	Start      int64
	ID         uint32 // 0 in a plain layout and in a default
	Flags      uint32 // as Lustre has them
	Pattern    uint32 // as Lustre has it
	Generation uint16
	Objects    []Object // in the order of the stripes
}

// Object is one stripe: an object on an OST.
type Object struct {
	OST     int // its index
	Seq, ID uint64
}

// Initialized reports whether the component has its objects.
func (p Part) Initialized() bool { return p.ID == 0 || p.Flags&flagInit != 0 }

// Released reports whether the bytes are in an archive rather than on OSTs.
func (p Part) Released() bool { return p.Pattern&patternReleased != 0 }

// OSTs lists the indices of the component's OSTs in the order of its stripes.
func (p Part) OSTs() []int {
	all := make([]int, len(p.Objects))
	for i, o := range p.Objects {
		all[i] = o.OST
	}
	return all
}

// Layout is the request that would ask for what is there. It leaves out objects,
// mirrors and what only a mirrored or self-extending file has.
func (g Granted) Layout() Layout {
	var l Layout
	for _, p := range g.Parts {
		c := p.Component
		if c.OnMDT {
			c = Component{End: c.End, OnMDT: true}
		}
		l.Components = append(l.Components, c)
	}
	return l
}

// String writes the layout as setstripe options, each component followed by the
// OSTs of its stripes: "-c 2 -S 4M on OST 3,1".
func (g Granted) String() string {
	var parts []string
	for i, p := range g.Parts {
		one := Layout{[]Component{g.Layout().Components[i]}}.Options()
		switch osts := p.OSTs(); {
		case p.Released():
			one += " released"
		case p.Flags&flagExtension != 0:
			one += " extends itself"
		case len(osts) > 0:
			one += " on OST " + joinInts(osts)
		case !p.Initialized():
			one += " not placed yet"
		}
		parts = append(parts, one)
	}
	s := strings.Join(parts, ", ")
	if g.Mirrors > 1 {
		s += fmt.Sprintf(" (%d mirrors)", g.Mirrors)
	}
	return s
}

func joinInts(list []int) string {
	words := make([]string, len(list))
	for i, n := range list {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}
