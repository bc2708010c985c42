package admin

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"cascadekv/dht"
	"cascadekv/tiers"
)

// metric describes one exported figure.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newMetric(name, help string, kind prometheus.ValueType, labels ...string) metric {
	return metric{prometheus.NewDesc("cascade_"+name, help, labels, nil), kind}
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

var (
	mCommands      = newMetric("commands_total", "Commands served.", counter)
	mAccepted      = newMetric("connections_accepted_total", "Client connections accepted.", counter)
	mRefused       = newMetric("connections_refused_total", "Client connections refused.", counter)
	mAuthFailed    = newMetric("auth_failures_total", "Attempts of AUTH and HELLO that did not let the client in.", counter)
	mConns         = newMetric("connections", "Client connections open.", gauge)
	mProtoErrors   = newMetric("protocol_errors_total", "Connections ended for bytes that are no command.", counter)
	mDropped       = newMetric("sets_dropped_total", "SETs answered without storing the value.", counter)
	mZeroCopy      = newMetric("sent_by_reference_bytes_total", "Bytes of values that clients copied from where they lie, without a copy of ours.", counter)
	mReload        = newMetric("config_last_reload_successful", "1 if the last reload of the configuration was taken.", gauge)
	mRegionIn      = newMetric("region_stored_total", "Blocks copied out of regions (CASCADE.STORE).", counter)
	mRegionInB     = newMetric("region_stored_bytes_total", "Bytes of these.", counter)
	mRegionOut     = newMetric("region_loaded_total", "Blocks copied into regions (CASCADE.LOAD).", counter)
	mRegionOutB    = newMetric("region_loaded_bytes_total", "Bytes of these.", counter)
	mJobs          = newMetric("jobs", "Jobs of engines that wait or run.", gauge)
	mRegions       = newMetric("regions", "Regions of engines that are attached.", gauge)
	mHeldBytes     = newMetric("held_bytes", "Bytes of the arena that views, pins and stages hold.", gauge)
	mHeldViews     = newMetric("held_views", "Views that clients hold.", gauge)
	mHeldPins      = newMetric("held_pins", "Pins that clients hold.", gauge)
	mHeldStages    = newMetric("held_stages", "Stages that clients fill.", gauge)
	mFlight        = newMetric("in_flight_bytes", "Memory of the kernel for replies that clients have not read.", gauge)
	mFlightWide    = newMetric("in_flight_buffers_bytes", "Size of the wide send buffers that connections with large replies have.", gauge)
	mFlightMost    = newMetric("in_flight_buffers_limit_bytes", "What the wide send buffers may take together.", gauge)
	mStalled       = newMetric("stalled_bytes", "Bytes of blocks that are borrowed by replies which clients do not read.", gauge)
	mTransit       = newMetric("transit_bytes", "Bytes of memory tiers that are taken for values which have not arrived as a whole.", gauge)
	mArriving      = newMetric("arriving_bytes", "Memory for large commands which have not arrived as a whole.", gauge)
	mStrangers     = newMetric("connections_unauthenticated", "Client connections that have not authenticated.", gauge)
	mNames         = newMetric("names", "Live names.", gauge)
	mNameBytes     = newMetric("name_bytes", "Heap that live names take, as names_bytes counts it.", gauge)
	mNameLimit     = newMetric("name_limit_bytes", "Bound on that heap; 0 is none.", gauge)
	mForgotten     = newMetric("forgotten_names_total", "Names given up, or not taken in at start, for names_bytes.", counter)
	mBlocks        = newMetric("blocks", "Distinct blocks.", gauge)
	mReferenced    = newMetric("referenced_bytes", "Bytes of all names' blocks.", gauge)
	mStored        = newMetric("stored_bytes", "Bytes of distinct blocks.", gauge)
	mPending       = newMetric("pending_id_bytes", "Bytes acknowledged and not hashed yet.", gauge)
	mDirty         = newMetric("dirty_bytes", "Bytes that are in memory only.", gauge)
	mPuts          = newMetric("puts_total", "Blocks put.", counter)
	mDuplicates    = newMetric("duplicates_total", "Puts whose bytes were stored already.", counter)
	mRejected      = newMetric("rejected_total", "Puts dropped for want of room.", counter)
	mLost          = newMetric("lost_total", "Dirty blocks dropped because the cold tier refused them.", counter)
	mCorrupt       = newMetric("corrupt_total", "Blocks withdrawn for a bad checksum.", counter)
	mMisses        = newMetric("misses_total", "Gets that found nothing.", counter)
	mNameLookups   = newMetric("lookups_total", "Names looked for without a get.", counter)
	mFound         = newMetric("lookups_found_total", "Names looked for without a get that were there.", counter)
	mLeases        = newMetric("leases", "Leases in force.", gauge)
	mHits          = newMetric("hits_total", "Gets served, by the tier that had the block.", counter, "tier")
	mTierMisses    = newMetric("tier_misses_total", "Gets that a slower tier served, or none, by tier.", counter, "tier")
	mHitBytes      = newMetric("hit_bytes_total", "Bytes served, by tier.", counter, "tier")
	mEvicted       = newMetric("evicted_total", "Blocks a tier gave up.", counter, "tier")
	mPromoted      = newMetric("promoted_total", "Blocks copied up into a tier.", counter, "tier")
	mDemoted       = newMetric("demoted_total", "Victims of a tier that went one tier down.", counter, "tier")
	mTierErrors    = newMetric("tier_errors_total", "Operations of a tier that failed.", counter, "tier")
	mUsed          = newMetric("tier_used_bytes", "Space taken in a tier, padding included.", gauge, "tier")
	mCapacity      = newMetric("tier_capacity_bytes", "Space of a tier; 0 is unbounded.", gauge, "tier")
	mHanging       = newMetric("tier_hanging", "Operations that a tier's file system has not answered for long.", gauge, "tier")
	mRefusals      = newMetric("tier_refusals_total", "Operations not tried because what they need does not answer.", counter, "tier")
	mTierStored    = newMetric("tier_stored_bytes", "Blocks of a tier as it stores them, padding excluded.", gauge, "tier")
	mTierPayload   = newMetric("tier_payload_bytes", "Blocks of a tier.", gauge, "tier")
	mEncoded       = newMetric("tier_encoded_total", "Blocks put into a tier, by codec; none is as they are.", counter, "tier", "codec")
	mEncodedIn     = newMetric("tier_encoded_in_bytes_total", "Bytes of the blocks put into a tier, by codec.", counter, "tier", "codec")
	mEncodedOut    = newMetric("tier_encoded_out_bytes_total", "Bytes that these take there, by codec.", counter, "tier", "codec")
	mDecoded       = newMetric("tier_decoded_total", "Blocks read from a tier and decoded, by codec.", counter, "tier", "codec")
	mLeft          = newMetric("lustre_left_bytes", "Segments of ended runs that fall to this rank and count in lustre.budget; it inherits them as it needs the space.", gauge)
	mInherited     = newMetric("lustre_inherited_total", "Runs whose segments became this rank's own for the budget's sake.", counter)
	mOwnBudget     = newMetric("lustre_own_budget_bytes", "What lustre.budget leaves for this rank's own segments.", gauge)
	mIndexUp       = newMetric("index_up", "1 while what other ranks and jobs left can be found, 0 while its index is broken.", gauge)
	mIndexParts    = newMetric("index_parts", "Parts of other ranks that this one has taken in.", gauge)
	mIndexSize     = newMetric("index_entries", "Blocks and names in the index.", gauge)
	mIndexRead     = newMetric("index_segments_read_total", "Segments whose contents were read for the index.", counter)
	mIndexHits     = newMetric("index_hits_total", "Names that were looked for in the index and found.", counter)
	mIndexMisses   = newMetric("index_misses_total", "Names that were looked for in the index and not found.", counter)
	mIndexDisk     = newMetric("index_disk_bytes", "What the index takes of the node's disk.", gauge)
	mIndexMemory   = newMetric("index_memory_bytes", "What the index keeps in memory.", gauge)
	mIndexT        = newMetric("index_size_ratio", "T of the index: how many times larger each level is than the one above it.", gauge)
	mIndexK        = newMetric("index_runs", "K of the index: sorted runs that its top level gathers.", gauge)
	mIndexTunes    = newMetric("index_retunes_total", "Times that T and K were changed.", counter)
	mIndexPuts     = newMetric("index_puts_total", "Blocks and names put into the index.", counter)
	mIndexSearch   = newMetric("index_searches_total", "Searches of the index: point found one entry, range went on to the next ones, absent found none.", counter, "kind")
	mIndexScan     = newMetric("index_scanned_total", "Entries of the index that ranges found.", counter)
	mIndexWrites   = newMetric("index_write_amplification", "Bytes that the index writes for each byte put, since it was opened or given another shape.", gauge)
	mIndexReads    = newMetric("index_read_amplification", "Sorted runs that a search of the index may meet.", gauge)
	mTunerVerdicts = newMetric("index_tuner_verdicts_total", "Judgements of the index's shape, by verdict.", counter, "verdict")
	mTunerMix      = newMetric("index_tuner_mix", "Shares of puts, hits, ranges and misses in the last operations of the index.", gauge, "kind")
	mTunerCost     = newMetric("index_tuner_cost_pages", "Predicted cost of an operation of that mix in the index's shape (current) and in the best one, in pages.", gauge, "shape")
	mReplicas      = newMetric("replicas_total", "Blocks of other ranks that were kept here.", counter)
	mRanks         = newMetric("ring_ranks", "Ranks in the ring.", gauge)
	mSettling      = newMetric("ring_settling", "1 while the ring changed lately.", gauge)
	mEntries       = newMetric("directory_entries", "Names whose home is here.", gauge)
	mCalls         = newMetric("peer_calls_total", "Messages to other ranks.", counter)
	mUnanswered    = newMetric("peer_unanswered_total", "Calls and reads that ended without an answer.", counter)
	mLookups       = newMetric("peer_lookups_total", "Keys asked for at their homes.", counter)
	mPeerReads     = newMetric("peer_reads_total", "Blocks read from other ranks.", counter)
	mPeerBytes     = newMetric("peer_read_bytes_total", "Bytes read from other ranks.", counter)
	mPeerErrors    = newMetric("peer_read_errors_total", "Reads from other ranks that failed.", counter)
	mStale         = newMetric("peer_stale_total", "Reads that found the block moved or gone.", counter)
	mServed        = newMetric("peer_served_bytes_total", "Bytes other ranks read here.", counter)
	mNsHits        = newMetric("namespace_hits_total", "Gets served, by namespace.", counter, "namespace")
	mNsMisses      = newMetric("namespace_misses_total", "Gets that found nothing, by namespace.", counter, "namespace")
	mNsLookups     = newMetric("namespace_lookups_total", "Names looked for without a get, by namespace.", counter, "namespace")
	mNsFound       = newMetric("namespace_lookups_found_total", "Of those the names that were there, by namespace.", counter, "namespace")
	mNsBytes       = newMetric("namespace_referenced_bytes", "Bytes of a namespace's names.", gauge, "namespace")
)

// collector is a prometheus.Collector of a server and its store.
type collector struct{ Options }

// Describe implements prometheus.Collector. It names nothing: the collector's
// metrics depend on tiers and namespaces that come and go.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	send := func(x metric, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(x.desc, x.kind, v, labels...)
	}
	s, n := c.Snapshot(), c.Counters()
	for _, x := range []struct {
		metric
		v float64
	}{
		{mCommands, float64(s.Commands)}, {mAccepted, float64(n.Accepted)}, {mRefused, float64(n.Refused)}, {mAuthFailed, float64(n.AuthFailures)},
		{mConns, float64(s.Connections)}, {mProtoErrors, float64(n.ProtocolErrors)}, {mDropped, float64(s.Dropped)},
		{mZeroCopy, float64(s.ZeroCopy)}, {mReload, oneIf(n.ReloadOK)}, {mNames, float64(s.Names)}, {mBlocks, float64(s.Blocks)},
		{mNameBytes, float64(s.NameBytes)}, {mNameLimit, float64(s.NameLimit)}, {mForgotten, float64(s.Forgotten)},
		{mReferenced, float64(s.BytesReferenced)}, {mStored, float64(s.BytesStored)}, {mPending, float64(s.PendingBytes)},
		{mDirty, float64(s.DirtyBytes)}, {mPuts, float64(s.Puts)}, {mDuplicates, float64(s.Duplicates)},
		{mRejected, float64(s.Rejected)}, {mLost, float64(s.Lost)}, {mCorrupt, float64(s.Corrupt)},
		{mMisses, float64(s.Misses)}, {mNameLookups, float64(s.Lookups)}, {mFound, float64(s.Found)}, {mLeases, float64(s.Leases)}, {mReplicas, float64(s.Replicas)},
		{mRegionIn, float64(n.Stored.Blocks)}, {mRegionInB, float64(n.Stored.Bytes)},
		{mRegionOut, float64(n.Loaded.Blocks)}, {mRegionOutB, float64(n.Loaded.Bytes)},
		{mJobs, float64(s.Held.Jobs)}, {mRegions, float64(s.Held.Regions)}, {mHeldBytes, float64(s.Held.Bytes)},
		{mHeldViews, float64(s.Held.Views)}, {mHeldPins, float64(s.Held.Pins)}, {mHeldStages, float64(s.Held.Stages)},
		{mFlight, float64(s.InFlight.Bytes)}, {mFlightWide, float64(s.InFlight.Buffers)}, {mFlightMost, float64(s.InFlight.Limit)},
		{mStalled, float64(s.InFlight.Stalled)}, {mTransit, float64(s.InFlight.Transit)}, {mArriving, float64(s.InFlight.Arriving)},
		{mStrangers, float64(s.InFlight.Strange)},
	} {
		send(x.metric, x.v)
	}
	if p := s.Peers; p != nil {
		collectPeers(p, send)
	}
	if i := s.Catalogue; i != nil {
		collectIndex(i, send)
	}
	for _, t := range s.Tiers {
		send(mHits, float64(t.Hits), t.Name)
		send(mTierMisses, float64(t.Misses), t.Name)
		send(mHitBytes, float64(t.HitBytes), t.Name)
		send(mEvicted, float64(t.Evicted), t.Name)
		send(mPromoted, float64(t.Promoted), t.Name)
		send(mDemoted, float64(t.Demoted), t.Name)
		send(mTierErrors, float64(t.Errors), t.Name)
		send(mUsed, float64(t.Usage.Used), t.Name)
		send(mCapacity, float64(t.Usage.Capacity), t.Name)
		collectFiles(t, send)
		if e := t.Encoded; e != nil {
			send(mTierStored, float64(e.Stored), t.Name)
			send(mTierPayload, float64(t.Usage.Payload), t.Name)
			for _, k := range e.Codecs {
				send(mEncoded, float64(k.Blocks), t.Name, k.Name)
				send(mEncodedIn, float64(k.BytesIn), t.Name, k.Name)
				send(mEncodedOut, float64(k.BytesOut), t.Name, k.Name)
				send(mDecoded, float64(k.Decoded), t.Name, k.Name)
			}
		}
	}
	if e := s.Orphans; e != nil {
		send(mLeft, float64(e.Bytes))
		send(mInherited, float64(e.Inherited))
		send(mOwnBudget, float64(e.Budget))
	}
	for _, x := range s.Namespaces {
		name := strings.ToValidUTF8(x.Name, "?")
		send(mNsHits, float64(x.Hits), name)
		send(mNsMisses, float64(x.Misses), name)
		send(mNsLookups, float64(x.Lookups), name)
		send(mNsFound, float64(x.Found), name)
		send(mNsBytes, float64(x.BytesReferenced), name)
	}
}

// collectPeers sends what a rank with peers has besides.
func collectPeers(p *dht.Stats, send func(metric, float64, ...string)) {
	for _, x := range []struct {
		metric
		v float64
	}{
		{mRanks, float64(p.Ranks)}, {mSettling, oneIf(p.Settling)}, {mEntries, float64(p.Entries)}, {mCalls, float64(p.Calls)},
		{mUnanswered, float64(p.Unanswered)}, {mLookups, float64(p.Lookups)}, {mPeerReads, float64(p.Reads)},
		{mPeerBytes, float64(p.ReadBytes)}, {mPeerErrors, float64(p.ReadErrors)}, {mStale, float64(p.Stale)}, {mServed, float64(p.ServedBytes)},
	} {
		send(x.metric, x.v)
	}
}

// collectIndex sends what a rank has with an index of what others left.
func collectIndex(c *tiers.CatalogueState, send func(metric, float64, ...string)) {
	for _, x := range []struct {
		metric
		v float64
	}{
		{mIndexUp, oneIf(c.Broken == "")}, {mIndexParts, float64(c.Parts)}, {mIndexSize, float64(c.Entries)}, {mIndexRead, float64(c.Read)},
		{mIndexHits, float64(c.Hits)}, {mIndexMisses, float64(c.Misses)}, {mIndexDisk, float64(c.DiskBytes)},
		{mIndexMemory, float64(c.MemoryBytes)}, {mIndexT, float64(c.SizeRatio)}, {mIndexK, float64(c.Runs)}, {mIndexTunes, float64(c.Retunes)},
		{mIndexPuts, float64(c.Puts)}, {mIndexScan, float64(c.Scanned)}, {mIndexWrites, c.WriteAmp}, {mIndexReads, float64(c.ReadAmp)},
	} {
		send(x.metric, x.v)
	}
	for kind, n := range map[string]uint64{"point": c.Points, "range": c.Ranges, "absent": c.Absent} {
		send(mIndexSearch, float64(n), kind)
	}
	if c.Tuner != nil {
		collectTuner(c.Tuner, send)
	}
}

// collectTuner sends what a rank has whose index is shaped for its work.
func collectTuner(t *tiers.Tuner, send func(metric, float64, ...string)) {
	for verdict, n := range t.Verdicts {
		send(mTunerVerdicts, float64(n), verdict)
	}
	for kind, share := range t.Mix {
		send(mTunerMix, share, kind)
	}
	send(mTunerCost, t.Cost, "current")
	send(mTunerCost, t.Best, "best")
}
