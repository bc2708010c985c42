package others

import (
	"slices"
	"testing"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// named is a name with a stamp.
func named(key string, seq uint64) block.Name {
	n := parttest.Name(key)
	n.Seq = seq
	return n
}

// owners says where each key was found: c for the catalogue, p for a peer, - for nowhere.
func owners(found [][]directory.Statement) (all string) {
	for _, copies := range found {
		switch {
		case copies == nil:
			all += "-"
		case FromCatalogue(copies):
			all += "c"
		default:
			all += "p"
		}
	}
	return all
}

// The catalogue is asked first, and peers for the rest alone.
func TestLocateAsksTheCatalogueFirst(t *testing.T) {
	r := newRank(t)
	f := r.known.Hold(named("a", 5), parttest.Data(1, size))
	r.known.Hold(named("b", 5), parttest.Data(2, size))
	r.peers.Hold(named("b", 5), parttest.Data(2, size), true, nil)
	r.peers.Hold(named("c", 5), parttest.Data(3, size), true, nil)
	keys := []string{"d", "a", "b", "c"}
	found := r.Located(t.Context(), "ns", keys)
	if got := owners(found); got != "-ccp" {
		t.Errorf("found %s", got)
	}
	if got := r.peers.Located(); !slices.Equal(got, []string{"d", "c"}) {
		t.Errorf("peers are asked for %v", got)
	}
	if st := found[1][0]; st.Info != f.Info || st.Segment.Path != "a" || st.Memory != nil || st.Name.Seq != 5 {
		t.Errorf("%+v", st)
	}
	r.HasParts.Store(false)
	if got := owners(r.Located(t.Context(), "ns", keys)); got != "--pp" {
		t.Errorf("before the catalogue was given parts: %s", got)
	}
	r.Peers = nil
	if r.AsksElsewhere() || r.LocatedOne(t.Context(), "ns", "b") != nil {
		t.Error("a rank that is alone asks somebody")
	}
}

// A bound name without its parent is no hit, wherever the two are.
func TestHalfAPairIsNoHit(t *testing.T) {
	bound := func(key, parent string) block.Name {
		n := named(key, 5)
		n.Parent, n.Bound = parent, true
		return n
	}
	r := newRank(t)
	p := parttest.Data(1, size)
	r.known.Hold(bound("nowhere", "x"), p)
	r.known.Hold(bound("here", "a"), p)
	r.known.Hold(bound("known", "b"), p)
	r.peers.Hold(bound("told", "c"), p, true, nil)
	r.peers.Hold(bound("nowhere either", "y"), p, true, nil)
	r.Put(parttest.Name("a"), parttest.Data(2, size))
	r.known.Hold(named("b", 5), parttest.Data(3, size))
	r.peers.Hold(named("c", 5), parttest.Data(4, size), true, nil)
	if got := owners(r.Located(t.Context(), "ns", []string{"nowhere", "here", "known", "told", "nowhere either"})); got != "-ccp-" {
		t.Errorf("found %s", got)
	}
}

// A probe finds what Located does. Of what the catalogue has it brings no places, unless
// there are bound names in it.
func TestProbeFindsWhatIsLocated(t *testing.T) {
	r := newRank(t)
	half := named("half", 5)
	half.Parent, half.Bound = "nowhere", true
	for i, n := range []block.Name{named("known", 5), named("deleted", 5), named("replaced", 5), half} {
		r.known.Hold(n, parttest.Data(uint64(i), size+i))
	}
	r.peers.Hold(named("asked", 5), parttest.Data(9, size+9), true, nil)
	r.invalidate("deleted")
	expired := parttest.Name("replaced")
	expired.Expires = r.Now().Add(1)
	r.Put(expired, parttest.Data(10, size))
	r.Advance(2)
	for _, keys := range [][]string{{"known", "deleted", "replaced", "asked", "none"}, {"known", "half", "asked"}} {
		probed, located := r.Probe(t.Context(), "ns", keys), r.Located(t.Context(), "ns", keys)
		for i, h := range probed {
			copies := located[i]
			if h.Found != (copies != nil) || h.Found && (h.Size != copies[0].Info.Size || r.ServedFrom(h.Copies) != r.ServedFrom(copies)) {
				t.Errorf("%s of %v: %+v; located: %v", keys[i], keys, h, copies)
			}
			if want := h.Found && (keys[i] == "asked" || keys[1] == "half"); (h.Copies != nil) != want {
				t.Errorf("%s of %v comes with its place: %v", keys[i], keys, !want)
			}
		}
	}
	r.HasParts.Store(false)
	if r.Probe(t.Context(), "ns", []string{"known"})[0].Found {
		t.Error("a block is found before the catalogue was given parts")
	}
}

// What a name of this rank replaced is no answer of the catalogue, also when that name
// cannot be read.
func TestWhatWasReplacedIsNoAnswer(t *testing.T) {
	r := newRank(t)
	r.known.Hold(named("a", 5), parttest.Data(1, size))
	half := parttest.Name("a", "nowhere")
	half.Bound = true
	r.Put(half, parttest.Data(2, size))
	if r.LocatedOne(t.Context(), "ns", "a") != nil {
		t.Error("an older put is found")
	}
	r.known.Hold(named("a", r.stamp()), parttest.Data(3, size))
	if r.LocatedOne(t.Context(), "ns", "a") == nil {
		t.Error("a younger put is not found")
	}
}

// A block that is not where the catalogue has it is taken out of it, and counted when
// it is damaged.
func TestLostSegments(t *testing.T) {
	r := newRank(t)
	f := r.known.Hold(named("a", 5), parttest.Data(1, size))
	st := statementOf(&f)
	r.LostSegment(t.Context(), &st, tiers.ErrNotFound)
	if r.Count.Stats.Corrupt != 0 {
		t.Error("what is not there is counted as damaged")
	}
	r.LostSegment(t.Context(), &st, tiers.ErrCorrupt)
	if got := r.known.Forgotten(); len(got) != 2 || got[0] != f || r.Count.Stats.Corrupt != 1 {
		t.Errorf("forgotten %v, %d damaged", got, r.Count.Stats.Corrupt)
	}
}

// What is in some rank's memory is served by that, else by the cold tier, if this rank
// has one.
func TestServedFrom(t *testing.T) {
	r := newRank(t)
	inMemory := []directory.Statement{r.peers.Hold(named("a", 5), nil, true, nil)}
	below := []directory.Statement{r.peers.Hold(named("a", 5), nil, false, &directory.Segment{})}
	if got := r.ServedFrom(inMemory) + r.ServedFrom(below); got != residency.RemoteTier+r.ColdName() {
		t.Error(got)
	}
	r.Cold = nil
	if got := r.ServedFrom(below); got != residency.RemoteTier {
		t.Error(got)
	}
}
