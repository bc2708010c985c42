package admin

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/tiers"
)

// collector is a prometheus.Collector of a server and its store.
type collector struct{ Options }

// Describe implements prometheus.Collector. It names nothing: the collector's
// metrics depend on tiers and namespaces that come and go.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	to := sink{out: out}
	s, n := c.Snapshot(), c.Counters()
	collectServer(to, &s, &n)
	if s.Peers != nil {
		collectPeers(to, s.Peers)
	}
	if s.Catalogue != nil {
		collectIndex(to, s.Catalogue)
	}
	for i := range s.Tiers {
		collectTier(to.with("tier", s.Tiers[i].Name), &s.Tiers[i])
	}
	if e := s.Orphans; e != nil {
		gauge(to, "lustre_left_bytes", "Segments of ended runs that fall to this rank and count in lustre.budget; it inherits them as it needs the space.", e.Bytes)
		counter(to, "lustre_inherited_total", "Runs whose segments became this rank's own for the budget's sake.", e.Inherited)
		gauge(to, "lustre_own_budget_bytes", "What lustre.budget leaves for this rank's own segments.", e.Budget)
	}
	for _, x := range s.Namespaces {
		of := to.with("namespace", strings.ToValidUTF8(x.Name, "?"))
		counter(of, "namespace_hits_total", "Gets served, by namespace.", x.Hits)
		counter(of, "namespace_misses_total", "Gets that found nothing, by namespace.", x.Misses)
		counter(of, "namespace_lookups_total", "Names looked for without a get, by namespace.", x.Lookups)
		counter(of, "namespace_lookups_found_total", "Of those the names that were there, by namespace.", x.Found)
		gauge(of, "namespace_referenced_bytes", "Bytes of a namespace's names.", x.BytesReferenced)
		gauge(of, "namespace_prefill_block_microseconds", "How long an engine takes to compute a block, as learned; 0: not known.", x.PrefillBlockUS)
	}
}

// sink takes metrics with some labels.
type sink struct {
	out           chan<- prometheus.Metric
	names, values []string // of the labels
}

// with returns a sink of metrics that have one label more.
func (s sink) with(name, value string) sink {
	s.names, s.values = append(slices.Clip(s.names), name), append(slices.Clip(s.values), value)
	return s
}

type number interface {
	~int | ~int64 | ~uint32 | ~uint64 | ~float64
}

func counter[N number](to sink, name, help string, v N) {
	to.send(name, help, prometheus.CounterValue, float64(v))
}

func gauge[N number](to sink, name, help string, v N) {
	to.send(name, help, prometheus.GaugeValue, float64(v))
}

func (s sink) send(name, help string, kind prometheus.ValueType, v float64) {
	s.out <- prometheus.MustNewConstMetric(prometheus.NewDesc("cascade_"+name, help, s.names, nil), kind, v, s.values...)
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// collectServer sends what every rank has.
func collectServer(to sink, s *Snapshot, n *Counters) {
	counter(to, "commands_total", "Commands served.", s.Commands)
	counter(to, "commands_polled_total", "Of these, those answered without waking their connection's goroutine.", s.Polled)
	counter(to, "connections_accepted_total", "Client connections accepted.", n.Accepted)
	counter(to, "connections_refused_total", "Client connections refused.", n.Refused)
	counter(to, "auth_failures_total", "Attempts of AUTH and HELLO that did not let the client in.", n.AuthFailures)
	gauge(to, "connections", "Client connections open.", s.Connections)
	counter(to, "protocol_errors_total", "Connections ended for bytes that are no command.", n.ProtocolErrors)
	counter(to, "sets_dropped_total", "SETs answered without storing the value.", s.Dropped)
	counter(to, "sent_by_reference_bytes_total", "Bytes of values that clients copied from where they lie, without a copy of ours.", s.ZeroCopy)
	gauge(to, "config_last_reload_successful", "1 if the last reload of the configuration was taken.", oneIf(n.ReloadOK))
	gauge(to, "names", "Live names.", s.Names)
	gauge(to, "blocks", "Distinct blocks.", s.Blocks)
	gauge(to, "name_bytes", "Heap that live names take, as names_bytes counts it.", s.NameBytes)
	gauge(to, "name_limit_bytes", "Bound on that heap; 0 is none.", s.NameLimit)
	counter(to, "forgotten_names_total", "Names given up, or not taken in at start, for names_bytes.", s.Forgotten)
	gauge(to, "referenced_bytes", "Bytes of all names' blocks.", s.BytesReferenced)
	gauge(to, "stored_bytes", "Bytes of distinct blocks.", s.BytesStored)
	gauge(to, "own_referenced_bytes", "Bytes of the blocks of names that are no copies of other ranks'; by the sum over the ranks, the job's.", s.OwnReferenced)
	gauge(to, "own_stored_bytes", "Bytes of the distinct blocks of these names; likewise.", s.OwnStored)
	gauge(to, "pending_id_bytes", "Bytes acknowledged and not hashed yet.", s.PendingBytes)
	gauge(to, "dirty_bytes", "Bytes that are in memory only.", s.DirtyBytes)
	counter(to, "puts_total", "Blocks put.", s.Puts)
	counter(to, "duplicates_total", "Puts whose bytes were stored already.", s.Duplicates)
	counter(to, "rejected_total", "Puts dropped for want of room.", s.Rejected)
	counter(to, "unwritten_total", "Dirty blocks dropped because fewer than store_threshold requests asked for them.", s.Unwritten)
	counter(to, "generated_dropped_total", "Dirty blocks of generated tokens dropped because of store_prompt_only.", s.Generated)
	counter(to, "shed_total", "Dirty blocks dropped because max_write_bytes_per_second, of lustre or of nvme, left no budget to write them.", s.Shed)
	counter(to, "lost_total", "Dirty blocks dropped because the cold tier refused them.", s.Lost)
	counter(to, "corrupt_total", "Blocks withdrawn for a bad checksum.", s.Corrupt)
	counter(to, "misses_total", "Gets that found nothing.", s.Misses)
	for step, reasons := range s.Losses {
		for reason, n := range reasons {
			counter(to.with("step", step).with("reason", reason), "losses_total", "Keys that were stored, or of which nobody answered whether they are, and that were not served, by the step of the load in which they were lost and the reason.", n)
		}
	}
	counter(to, "lookups_total", "Names looked for without a get.", s.Lookups)
	counter(to, "lookups_found_total", "Names looked for without a get that were there.", s.Found)
	gauge(to, "leases", "Leases in force.", s.Leases)
	counter(to, "replicas_total", "Blocks of other ranks that were kept here.", s.Replicas)
	counter(to, "prefetched_total", "Blocks of other ranks and of segments that were brought into memory ahead of their gets.", s.Prefetched)
	counter(to, "prefetch_hits_total", "Of those the blocks that were asked for in time.", s.PrefetchHits)
	counter(to, "prefetch_wasted_total", "Of those the blocks that were here in vain.", s.PrefetchWasted)
	counter(to, "relied_total", "Blocks of which another rank keeps the bytes, so that this one does not.", s.Relied)
	counter(to, "region_stored_total", "Blocks copied out of regions (CASCADE.STORE).", n.Stored.Blocks)
	counter(to, "region_stored_bytes_total", "Bytes of these.", n.Stored.Bytes)
	counter(to, "region_loaded_total", "Blocks copied into regions (CASCADE.LOAD).", n.Loaded.Blocks)
	counter(to, "region_loaded_bytes_total", "Bytes of these.", n.Loaded.Bytes)
	gauge(to, "jobs", "Jobs of engines that wait or run.", s.Held.Jobs)
	gauge(to, "regions", "Regions of engines that are attached.", s.Held.Regions)
	gauge(to, "held_bytes", "Bytes of the arena that views, pins and stages hold.", s.Held.Bytes)
	gauge(to, "held_views", "Views that clients hold.", s.Held.Views)
	gauge(to, "held_pins", "Pins that clients hold.", s.Held.Pins)
	gauge(to, "held_stages", "Stages that clients fill.", s.Held.Stages)
	gauge(to, "in_flight_bytes", "Memory of the kernel for replies that clients have not read.", s.InFlight.Bytes)
	gauge(to, "in_flight_buffers_bytes", "Size of the wide send buffers that connections with large replies have.", s.InFlight.Buffers)
	gauge(to, "in_flight_buffers_limit_bytes", "What the wide send buffers may take together.", s.InFlight.Limit)
	gauge(to, "stalled_bytes", "Bytes of blocks that are borrowed by replies which clients do not read.", s.InFlight.Stalled)
	gauge(to, "transit_bytes", "Bytes of memory tiers that are taken for values which have not arrived as a whole.", s.InFlight.Transit)
	gauge(to, "arriving_bytes", "Memory for large commands which have not arrived as a whole.", s.InFlight.Arriving)
	gauge(to, "connections_unauthenticated", "Client connections that have not authenticated.", s.InFlight.Strange)
}

// collectPeers sends what a rank with peers has besides.
func collectPeers(to sink, p *dht.Stats) {
	gauge(to, "ring_ranks", "Ranks in the ring.", p.Ranks)
	gauge(to, "ring_settling", "1 while the ring changed lately.", oneIf(p.Settling))
	gauge(to, "directory_entries", "Names whose home is here.", p.Entries)
	counter(to, "peer_calls_total", "Messages to other ranks.", p.Calls)
	counter(to, "peer_unanswered_total", "Calls and reads that ended without an answer.", p.Unanswered)
	counter(to, "peer_lookups_total", "Keys asked for at their homes.", p.Lookups)
	counter(to, "peer_reads_total", "Blocks read from other ranks.", p.Reads)
	counter(to, "peer_read_bytes_total", "Bytes read from other ranks.", p.ReadBytes)
	counter(to, "peer_read_errors_total", "Reads from other ranks that failed.", p.ReadErrors)
	counter(to, "peer_stale_total", "Reads that found the block moved or gone.", p.Stale)
	counter(to, "peer_served_bytes_total", "Bytes other ranks read here.", p.ServedBytes)
}

// collectIndex sends what a rank has with an index of what others left.
func collectIndex(to sink, c *tiers.CatalogueState) {
	gauge(to, "index_up", "1 while what other ranks and jobs left can be found, 0 while its index is broken.", oneIf(c.Broken == ""))
	gauge(to, "index_parts", "Parts of other ranks that this one has taken in.", c.Parts)
	gauge(to, "index_entries", "Blocks and names in the index.", c.Entries)
	counter(to, "index_segments_read_total", "Segments whose contents were read for the index.", c.Read)
	counter(to, "index_hits_total", "Names that were looked for in the index and found.", c.Hits)
	counter(to, "index_misses_total", "Names that were looked for in the index and not found.", c.Misses)
	gauge(to, "index_disk_bytes", "What the index takes of the node's disk.", c.DiskBytes)
	gauge(to, "index_memory_bytes", "What the index keeps in memory.", c.MemoryBytes)
	gauge(to, "index_size_ratio", "T of the index: how many times larger each level is than the one above it.", c.SizeRatio)
	gauge(to, "index_runs", "K of the index: sorted runs that its top level gathers.", c.Runs)
	counter(to, "index_retunes_total", "Times that T and K were changed.", c.Retunes)
	counter(to, "index_puts_total", "Blocks and names put into the index.", c.Puts)
	counter(to, "index_scanned_total", "Entries of the index that ranges found.", c.Scanned)
	gauge(to, "index_write_amplification", "Bytes that the index writes for each byte put, since it was opened or given another shape.", c.WriteAmp)
	gauge(to, "index_read_amplification", "Sorted runs that a search of the index may meet.", c.ReadAmp)
	for kind, n := range map[string]uint64{"point": c.Points, "range": c.Ranges, "absent": c.Absent} {
		counter(to.with("kind", kind), "index_searches_total", "Searches of the index: point found one entry, range went on to the next ones, absent found none.", n)
	}
	t := c.Tuner
	if t == nil {
		return
	}
	for verdict, n := range t.Verdicts {
		counter(to.with("verdict", verdict), "index_tuner_verdicts_total", "Judgements of the index's shape, by verdict.", n)
	}
	for kind, share := range t.Mix {
		gauge(to.with("kind", kind), "index_tuner_mix", "Shares of puts, hits, ranges and misses in the last operations of the index.", share)
	}
	for shape, cost := range map[string]float64{"current": t.Cost, "best": t.Best} {
		gauge(to.with("shape", shape), "index_tuner_cost_pages", "Predicted cost of an operation of that mix in the index's shape (current) and in the best one, in pages.", cost)
	}
}

// collectTier sends what a tier has.
func collectTier(to sink, t *cascade.TierStats) {
	counter(to, "hits_total", "Gets served, by the tier that had the block.", t.Hits)
	counter(to, "tier_misses_total", "Gets that a slower tier served, or none, by tier.", t.Misses)
	counter(to, "hit_bytes_total", "Bytes served, by tier.", t.HitBytes)
	counter(to, "evicted_total", "Blocks a tier gave up.", t.Evicted)
	counter(to, "promoted_total", "Blocks copied up into a tier.", t.Promoted)
	counter(to, "demoted_total", "Victims of a tier that went one tier down.", t.Demoted)
	counter(to, "tier_errors_total", "Operations of a tier that failed.", t.Errors)
	gauge(to, "tier_used_bytes", "Space taken in a tier, padding included.", t.Usage.Used)
	gauge(to, "tier_capacity_bytes", "Space of a tier; 0 is unbounded.", t.Usage.Capacity)
	gauge(to, "load_latency_seconds", "Estimate of the time that each load from a tier takes, whatever its size.", float64(t.Load.LatencyUS)/1e6)
	gauge(to, "load_bytes_per_second", "Estimate of the bandwidth of loads from a tier, of all that run together.", t.Load.BytesPerSecond)
	gauge(to, "load_queued_bytes", "Bytes of loads from a tier that have begun and not ended.", t.Load.Queued)
	if b := t.Budget; b != nil {
		gauge(to, "read_limit_bytes_per_second", "Bound on what is read from a tier; 0: none.", b.Reads)
		gauge(to, "write_limit_bytes_per_second", "Bound on what is written to a tier; 0: none.", b.Writes)
	}
	if h := t.Health; h != nil {
		collectHealth(to, h)
	}
	if m := t.Merged; m != nil {
		counter(to, "tier_merges_total", "Merges of a tier's files that did something.", m.Merges)
		counter(to, "tier_merge_segments_total", "Files that merges rewrote, and that are unlinked then.", m.Segments)
		counter(to, "tier_merge_blocks_total", "Blocks that merges moved.", m.Blocks)
		counter(to, "tier_merge_bytes_total", "Bytes of these.", m.Bytes)
		counter(to, "tier_merge_written_bytes_total", "Bytes of the files that merges made.", m.Written)
		counter(to, "tier_merge_removed_bytes_total", "Bytes of the files that merges rewrote; less what was written, this is what they freed.", m.Removed)
	}
	if s := t.Striping; s != nil {
		gauge(to.with("asked", strings.ToValidUTF8(s.Asked, "?")).with("granted", strings.ToValidUTF8(s.Granted, "?")), "tier_striping_info", "1; the labels are the layout that was asked for and what the newest file was granted, as options of lfs setstripe.", 1)
		gauge(to, "tier_striping_as_asked", "1 if the newest file is laid out as it was asked for.", oneIf(s.AsAsked()))
	}
	e := t.Encoded
	if e == nil {
		return
	}
	gauge(to, "tier_stored_bytes", "Blocks of a tier as it stores them, padding excluded.", e.Stored)
	gauge(to, "tier_payload_bytes", "Blocks of a tier.", t.Usage.Payload)
	for _, k := range e.Codecs {
		of := to.with("codec", k.Name)
		counter(of, "tier_encoded_total", "Blocks put into a tier, by codec; none is as they are.", k.Blocks)
		counter(of, "tier_encoded_in_bytes_total", "Bytes of the blocks put into a tier, by codec.", k.BytesIn)
		counter(of, "tier_encoded_out_bytes_total", "Bytes that these take there, by codec.", k.BytesOut)
		counter(of, "tier_decoded_total", "Blocks read from a tier and decoded, by codec.", k.Decoded)
	}
}

// collectHealth sends what a tier on a file system has besides.
func collectHealth(to sink, h *tiers.Health) {
	gauge(to, "tier_hanging", "Operations that a tier's file system has not answered for long.", h.Hanging)
	counter(to, "tier_refusals_total", "Operations not tried because what they need does not answer.", h.Refused)
	gauge(to, "tier_broken_files", "Files that a tier leaves alone for a while, for they do not answer.", h.Files)
	gauge(to, "tier_writes_broken", "1 while a tier takes no blocks because writes are not answered.", oneIf(h.Writes))
	counter(to, "tier_breaks_total", "Times that files, or all writes, began to be left alone.", h.Breaks)
	gauge(to, "tier_read_only", "1 while a tier takes no blocks because there is no space or quota left.", oneIf(h.ReadOnly))
	counter(to, "tier_poisoned_total", "Files that were given up after a write or fsync that failed.", h.Poisoned)
	for kind, n := range map[string]uint64{"corrupt": h.Reads.Corrupt, "gone": h.Reads.Gone, "unanswered": h.Reads.Unanswered, "failed": h.Reads.Failed} {
		counter(to.with("kind", kind), "tier_read_errors_total", "Reads of a tier that failed, by kind: corrupt, gone, unanswered, failed.", n)
	}
}
