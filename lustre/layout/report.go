package layout

import (
	"fmt"
	"slices"
	"strconv"
)

// Kind is in what respect a layout is not what was asked for.
type Kind string

// The kinds of differences.
const (
	Ignored    Kind = "ignored"    // nothing of the request is in effect
	Fewer      Kind = "fewer"      // fewer stripes
	More       Kind = "more"       // more stripes
	OtherSize  Kind = "size"       // stripes of another size
	OtherPool  Kind = "pool"       // another pool, or none
	NoPool     Kind = "no pool"    // the name of a pool that does not exist
	Outside    Kind = "outside"    // the pool's name, but OSTs that are not in it
	Elsewhere  Kind = "elsewhere"  // on OSTs instead of the metadata server, or the reverse
	Components Kind = "components" // other components
)

// why returns what usually causes a difference.
var why = map[Kind]string{
	Ignored:    "the site restricts setstripe (llite.*.enable_setstripe_gid), or the file was made with a layout before",
	Fewer:      "only so many OSTs are active in the file system or in the pool (lfs osts, lfs pool_list), or setstripe is restricted",
	More:       "the file system places at least so many",
	OtherSize:  "the file system chose its own, or setstripe is restricted",
	OtherPool:  "the file system chose its own, or setstripe is restricted",
	NoPool:     "Lustre takes any name and then uses any OST; lfs pool_list FILESYSTEM names the pools",
	Outside:    "the pool has changed, or has no OST that is active (lfs pool_list, lfs osts)",
	Elsewhere:  "the metadata server takes no file data (lod.*.dom_stripesize)",
	Components: "the metadata server takes no file data (lod.*.dom_stripesize), or setstripe is restricted",
}

// Difference is one respect in which the granted layout is not the one asked
// for.
type Difference struct {
	Kind      Kind
	Component int // from 0; -1: the layout as a whole
	Asked     string
	Granted   string
}

// String names the component, both sides and what usually lies behind it.
func (d Difference) String() string {
	where := ""
	if d.Component >= 0 {
		where = fmt.Sprintf("component %d: ", d.Component+1)
	}
	return fmt.Sprintf("%s%s instead of %s: %s", where, d.Granted, d.Asked, why[d.Kind])
}

// Report is what became of a request.
type Report struct {
	Path        string
	Asked       Layout
	Striped     bool    // false: the file system has no stripes
	Granted     Granted // read back; empty when a directory has no default
	Differences []Difference
	Err         error // why nothing could be set, or nothing read back
}

// compare fills Differences.
func (r *Report) compare() {
	r.Differences = append(Compare(r.Asked, r.Granted), r.comparePools("/")...)
}

// comparePools looks for pools that are a mere name: Lustre does not check it.
// root is where /proc and /sys hang.
func (r *Report) comparePools(root string) []Difference {
	var all []Difference
	for i, c := range r.Asked.Components {
		if c.Pool == "" || c.Pool == poolIgnore || i >= len(r.Granted.Parts) || r.Granted.Parts[i].Pool != c.Pool {
			continue
		}
		if !r.Asked.Composite() {
			i = -1
		}
		members, known := poolMembers(r.Path, c.Pool, root)
		switch osts := r.Granted.Parts[max(i, 0)].OSTs(); {
		case !known:
		case members == nil:
			all = append(all, Difference{NoPool, i, pool(c.Pool), "a pool that does not exist"})
		case slices.ContainsFunc(osts, func(n int) bool { return !slices.Contains(members, n) }):
			all = append(all, Difference{Outside, i, pool(c.Pool) + ", OST " + joinInts(members), "OST " + joinInts(osts)})
		}
	}
	return all
}

// Compare lists in what respects granted is not what asked wanted. A field that
// asked leaves to the file system never differs.
func Compare(asked Layout, granted Granted) []Difference {
	if asked.IsZero() {
		return nil
	}
	got := granted.Layout()
	if len(got.Components) == 0 {
		if !asked.Composite() && asked.Components[0] == (Component{}) {
			return nil // a default that leaves everything open is none
		}
		return []Difference{{Ignored, -1, asked.Options(), describe(granted)}}
	}
	whole := func(k Kind) []Difference { return []Difference{{k, -1, asked.Options(), describe(granted)}} }
	switch {
	case asked.Composite() != granted.Composite:
		return whole(Ignored)
	case len(asked.Components) != len(got.Components):
		return whole(Components)
	}
	var all []Difference
	explicit := 0
	for i, c := range asked.Components {
		if c.End != got.Components[i].End {
			return whole(Components)
		}
		differ, n := c.compare(got.Components[i])
		for _, d := range differ {
			d.Component = i
			if !asked.Composite() {
				d.Component = -1
			}
			all = append(all, d)
		}
		explicit += n
	}
	if !asked.Composite() && explicit > 1 && len(all) == explicit {
		return whole(Ignored)
	}
	return all
}

// compare holds one component against what was granted; explicit counts what it
// asks for.
func (c Component) compare(got Component) (all []Difference, explicit int) {
	add := func(k Kind, asked, granted string) { all = append(all, Difference{k, 0, asked, granted}) }
	if c.OnMDT || got.OnMDT {
		if c.OnMDT != got.OnMDT {
			add(Elsewhere, place(c), place(got))
		}
		return all, 1
	}
	if c.Count != 0 {
		explicit++
	}
	switch {
	case c.Count <= 0 || got.Count < 0: // any number will do, or none is decided yet
	case got.Count < c.Count:
		add(Fewer, stripes(c.Count), stripes(got.Count))
	case got.Count > c.Count:
		add(More, stripes(c.Count), stripes(got.Count))
	}
	if c.Size != 0 {
		explicit++
		if got.Size != c.Size {
			add(OtherSize, "-S "+formatSize(c.Size), "-S "+formatSize(got.Size))
		}
	}
	wanted := c.Pool
	if wanted == poolIgnore {
		wanted = ""
	}
	if c.Pool != "" {
		explicit++
		if got.Pool != wanted && got.Pool != c.Pool {
			add(OtherPool, pool(c.Pool), pool(got.Pool))
		}
	}
	return all, explicit
}

func place(c Component) string {
	if c.OnMDT {
		return "-L mdt"
	}
	return "-L raid0"
}

func stripes(n int) string {
	if n == 1 {
		return "1 stripe"
	}
	return strconv.Itoa(n) + " stripes"
}

func pool(name string) string {
	if name == "" {
		return "no pool"
	}
	return "pool " + name
}

func describe(g Granted) string {
	if len(g.Parts) == 0 {
		return "no layout"
	}
	return g.String()
}
