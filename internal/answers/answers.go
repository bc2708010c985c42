package answers

import (
	"maps"
	"slices"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/block"
	"cascadekv/internal/resp"
)

// Probe writes what was found of a chain.
func Probe(w *resp.Writer, p *cascade.ProbeResult) {
	w.Map(5)
	probe(w, p)
}

// Advice writes what was found of a chain, and how much of it to load, in tokens too for clients that
// asked by words.
func Advice(w *resp.Writer, a *cascade.Advice, byWords bool) {
	if byWords {
		w.Map(9)
	} else {
		w.Map(8)
	}
	probe(w, &a.ProbeResult)
	w.Number("blocks", int64(a.Blocks))
	w.Number("blocks_us", a.Load.Microseconds())
	w.Number("block_us", a.PerBlock.Microseconds())
	if byWords {
		w.Number("load_tokens", a.Tokens)
	}
}

// probe writes five fields.
func probe(w *resp.Writer, p *cascade.ProbeResult) {
	w.Number("hits", int64(p.Hits))
	w.Number("bytes", p.Bytes)
	w.BulkString("tiers")
	w.Map(len(p.Tiers))
	for _, t := range slices.Sorted(maps.Keys(p.Tiers)) {
		w.Number(t, int64(p.Tiers[t]))
	}
	w.Number("load_us", p.LoadUS())
	w.BulkString("runs")
	w.Array(len(p.Runs))
	for _, r := range p.Runs {
		w.Array(4)
		w.BulkString(r.Tier)
		w.Int(int64(r.Hits))
		w.Int(r.Bytes)
		w.Int(r.LoadUS)
	}
}

// Stat writes what is known of a name whose block has so many names in the job, in a
// namespace of a layout.
func Stat(w *resp.Writer, info *cascade.NameInfo, refs int, layout block.Layout) {
	pttl := int64(-1)
	if !info.Expires.IsZero() {
		pttl = time.Until(info.Expires).Milliseconds()
	}
	w.Map(12)
	w.Text("id", info.ID.String())
	w.Number("size", info.Size)
	w.Text("parent", info.Parent)
	w.Number("depth", int64(info.Depth))
	w.Number("refs", int64(refs))
	w.BulkString("tiers")
	w.Array(len(info.Tiers))
	for _, t := range info.Tiers {
		w.BulkString(t)
	}
	w.BulkString("prefix")
	w.Bool(info.Prefix)
	w.Number("pttl", pttl)
	w.BulkString("dirty")
	w.Bool(info.Dirty)
	keys, known := layout.KeysOf(info.Size)
	if !known {
		keys = -1
	}
	w.Number("key_bytes", keys)
	w.BulkString("layout")
	Layout(w, layout)
	w.BulkString("inferred")
	w.Bool(info.Inferred)
}

// Layout writes a layout, or null where nothing is known.
func Layout(w *resp.Writer, l block.Layout) {
	if l.IsZero() {
		w.Null()
		return
	}
	w.Map(7)
	w.Number("bytes", l.Bytes)
	w.Number("key_bytes", l.KeyBytes)
	w.Number("tokens", int64(l.Tokens))
	w.Number("layers", int64(l.Layers))
	w.Number("heads", int64(l.Heads))
	w.Number("head_dim", int64(l.HeadDim))
	w.Text("dtype", l.DType)
}
