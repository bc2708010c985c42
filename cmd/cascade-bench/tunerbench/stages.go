package tunerbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/lustre/tuner"
	"cascadekv/tiers"
)

// Errors of Stages. Test with errors.Is.
var (
	ErrCatalogue = errors.New("bench: the rank's catalogue does not work")
	ErrLost      = errors.New("bench: the rank has lost blocks")
)

// StagesOptions choose a comparison of a live rank whose catalogue is tuned with one
// whose is not. The zero value is the workload of SGLang-LSM §4.1 scaled down.
type StagesOptions struct {
	Dir      string    // on a local disk, for segments and indexes; folders are made in it and removed
	ShmDir   string    // where the arena goes; default /dev/shm
	HitRates []float64 // expected, one for each stage; default the paper's ten
	Requests int       // of a stage; default 400
	Blocks   int       // of a request's chain; default 256
	Size     int       // bytes of a block; default 256
	Warm     int       // chains that another rank stores before the first stage; default 1200
	Lookups  int       // of one name, for each request; default 8
	Memory   int64     // of the rank; default 16 MiB, less than a stage stores
	Conns    int       // default 2
	Rounds   int       // of both; default 3
	NoPause  bool      // leave no time between stages, in which the tuner could change anything

	Progress func(done, total int) // called after each stage, by one goroutine; may be nil
}

// StagesResult compares both. Ratios are on / off, below 1 where tuning pays: medians
// over the rounds, each of which has both.
type StagesResult struct {
	Requests int           `json:"requests"` // of a stage
	Blocks   int           `json:"blocks"`   // of a request
	Size     int           `json:"block_bytes"`
	Warm     int           `json:"warm_blocks"`
	Memory   int64         `json:"memory_bytes"`
	Rounds   int           `json:"rounds"`
	Paused   bool          `json:"paused"` // the tuner had a quiet moment after each stage
	Rank     string        `json:"rank_version"`
	Machine  kit.Machine   `json:"machine"`
	Total    StagesTotal   `json:"total"`
	Stages   []LiveStage   `json:"stages"`
	ByRound  []StageRatios `json:"ratios_by_round"` // of all stages together
}

// StagesTotal is all stages together.
type StagesTotal struct {
	On     LiveWork    `json:"on"`
	Off    LiveWork    `json:"off"`
	Ratios StageRatios `json:"ratios"`
}

// LiveStage is one stage.
type LiveStage struct {
	ExpectedHit float64 `json:"expected_hit"`
	StagesTotal
}

// LiveWork is what a stage took on one side, in medians over the rounds, and what was done, in
// the last round. Seconds are those of requests and of the drain at their end; CPU
// time and bytes include the pause that follows, and so all that the stage set
// going and the change of shape.
type LiveWork struct {
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu_s"`                // of the rank
	Written  float64 `json:"written_bytes"`        // by the rank to disks: /proc/PID/io write_bytes
	Segments float64 `json:"segment_bytes"`        // into the directory of segments, by merges too
	Merged   float64 `json:"merged_bytes"`         // of segment_bytes, by merges
	Unmerged float64 `json:"unmerged_bytes"`       // written_bytes without those of merges, which come when they come
	Other    float64 `json:"other_bytes"`          // the rest of written_bytes: the index, and rounding to pages
	Estimate float64 `json:"index_estimate_bytes"` // write_amplification at the end × entries put × bytes of one on disk
	Pause    float64 `json:"pause_s"`

	Operations int `json:"operations"` // names that were asked for, blocks loaded and put
	served

	Catalogue CatalogueWork `json:"catalogue"`
}

// CatalogueWork is what the rank reports of its catalogue: what was done in a stage, and
// how it is at the end.
type CatalogueWork struct {
	Puts    uint64    `json:"puts"`    // of entries
	Points  uint64    `json:"points"`  // searches that found one entry
	Ranges  uint64    `json:"ranges"`  // searches that went on
	Scanned uint64    `json:"scanned"` // entries of these
	Absent  uint64    `json:"absent"`  // searches that found nothing
	Mix     tuner.Mix `json:"mix"`     // of these; the tuner's own covers its window
	Retunes uint64    `json:"retunes"`

	T         int          `json:"t"`
	K         int          `json:"k"`
	Entries   uint64       `json:"entries"`
	DiskBytes uint64       `json:"disk_bytes"`
	WriteAmp  float64      `json:"write_amplification"` // since it was opened or given another shape
	ReadAmp   int          `json:"read_amplification"`
	Tuner     *tiers.Tuner `json:"tuner,omitempty"` // its last judgement
}

// StageRatios are on / off.
type StageRatios struct {
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu"`
	Written  float64 `json:"written"`
	Segments float64 `json:"segments"`
	Unmerged float64 `json:"unmerged"`
	Other    float64 `json:"other"`
	Estimate float64 `json:"index_estimate"`
}

// liveParts are the parts of a work of which there are ratios, in the order of
// StageRatios; liveMedians are all that rounds differ in.
func liveParts(w *LiveWork) []*float64 {
	return []*float64{&w.Seconds, &w.CPU, &w.Written, &w.Segments, &w.Unmerged, &w.Other, &w.Estimate}
}

func liveMedians(w *LiveWork) []*float64 { return append(liveParts(w), &w.Merged, &w.Pause) }

func stageRatios(on, off []LiveWork) (r StageRatios) {
	for i, to := range []*float64{&r.Seconds, &r.CPU, &r.Written, &r.Segments, &r.Unmerged, &r.Other, &r.Estimate} {
		_, *to = kit.Ratios(column(on, liveParts, i), column(off, liveParts, i))
	}
	return r
}

func stagesTotal(on, off []LiveWork) StagesTotal {
	return StagesTotal{medianWork(on, liveMedians), medianWork(off, liveMedians), stageRatios(on, off)}
}

func (o StagesOptions) withDefaults() StagesOptions {
	if len(o.HitRates) == 0 {
		o.HitRates = paperHitRates
	}
	o.ShmDir = cmp.Or(o.ShmDir, "/dev/shm")
	o.Requests = cmp.Or(o.Requests, 400)
	o.Blocks = cmp.Or(o.Blocks, 256)
	o.Size = cmp.Or(o.Size, 256)
	o.Warm = cmp.Or(o.Warm, 1200)
	o.Lookups = cmp.Or(o.Lookups, 8)
	o.Memory = cmp.Or(o.Memory, 16<<20)
	o.Conns = cmp.Or(o.Conns, 2)
	o.Rounds = cmp.Or(o.Rounds, 3)
	return o
}

func (o StagesOptions) check() error {
	if o.Requests < 1 || o.Blocks < 1 || o.Warm < 1 || o.Lookups < 0 || o.Conns < 1 || o.Rounds < 1 {
		return fmt.Errorf("%w: %d requests of %d blocks, %d chains before, %d look-ups, %d connections, %d rounds", kit.ErrBadOption,
			o.Requests, o.Blocks, o.Warm, o.Lookups, o.Conns, o.Rounds)
	}
	if o.Size < kit.StampBytes {
		return fmt.Errorf("%w: %w: %d bytes, want at least %d", kit.ErrBadOption, kit.ErrTooSmall, o.Size, kit.StampBytes)
	}
	return checkRates(o.HitRates)
}

// Stages has a real rank serve stages of requests whose expected hit rate rises and falls,
// with a tuned index and with one that keeps its shape, in turns. What the requests share
// lies in segments that another rank left, or that the rank has written itself.
// Errors: kit.ErrBadOption, kit.ErrNoRank, kit.ErrStart, kit.ErrWrong, ErrCatalogue, ErrLost.
func Stages(ctx context.Context, o StagesOptions) (res *StagesResult, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &stagesRun{o: o, stages: growing(o.HitRates, o.Requests, o.Blocks, int64(o.Warm))}
	s.chains = chains{size: o.Size, perChain: o.Blocks, perLookup: o.Lookups}
	for c := range o.Warm {
		s.chains.heads = append(s.chains.heads, Request{Sequence: int64(c), Blocks: o.Blocks})
	}
	for _, stage := range s.stages {
		s.chains.heads = append(s.chains.heads, stage...)
	}
	if s.sockets, err = os.MkdirTemp("", "cascade-bench-"); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.sockets)) }()
	s.progress = kit.Progress(2*o.Rounds*len(o.HitRates), o.Progress)
	var on, off [][]LiveWork // by round, then stage
	machine := kit.ReadMachine()
	for round := range o.Rounds {
		for side := range kit.Order(round, 2) {
			tuned := side == 0
			work, err := s.pass(ctx, tuned)
			if err != nil {
				return nil, fmt.Errorf("bench: round %d, tuning %v: %w", round+1, tuned, err)
			}
			if tuned {
				on = append(on, work)
			} else {
				off = append(off, work)
			}
		}
	}
	res = &StagesResult{Requests: o.Requests, Blocks: o.Blocks, Size: o.Size, Warm: o.Warm * o.Blocks, Memory: o.Memory,
		Rounds: o.Rounds, Paused: !o.NoPause, Rank: s.version, Machine: machine}
	res.compare(o.HitRates, on, off)
	return res, nil
}

// compare fills in what the rounds came to.
func (res *StagesResult) compare(rates []float64, on, off [][]LiveWork) {
	for i, rate := range rates {
		one := func(all [][]LiveWork) (of []LiveWork) {
			for _, r := range all {
				of = append(of, r[i])
			}
			return of
		}
		res.Stages = append(res.Stages, LiveStage{rate, stagesTotal(one(on), one(off))})
	}
	sumOn, sumOff := sumLive(on), sumLive(off)
	res.Total = stagesTotal(sumOn, sumOff)
	for i := range sumOn {
		res.ByRound = append(res.ByRound, stageRatios(sumOn[i:i+1], sumOff[i:i+1]))
	}
}

// sumLive is the stages of each round together; how the catalogue is is what it is at
// their end.
func sumLive(rounds [][]LiveWork) (all []LiveWork) {
	for _, stages := range rounds {
		var sum LiveWork
		for _, w := range stages {
			for i, part := range liveMedians(&sum) {
				*part += *liveMedians(&w)[i]
			}
			sum.Operations += w.Operations
			sum.served.add(w.served)
			c := w.Catalogue
			c.Puts += sum.Catalogue.Puts
			c.Points += sum.Catalogue.Points
			c.Ranges += sum.Catalogue.Ranges
			c.Scanned += sum.Catalogue.Scanned
			c.Absent += sum.Catalogue.Absent
			c.Retunes += sum.Catalogue.Retunes
			c.Mix = c.counts().Mix()
			sum.Catalogue = c
		}
		all = append(all, sum)
	}
	return all
}

// counts are the operations of c, as the tuner counts them.
func (c *CatalogueWork) counts() tuner.Counts {
	return tuner.Counts{Puts: c.Puts, Hits: c.Points, Ranges: c.Ranges, Misses: c.Absent, Scanned: c.Scanned}
}

// stagesRun is the work of one Stages.
type stagesRun struct {
	o        StagesOptions
	chains   chains
	stages   [][]Request
	sockets  string // directory
	version  string
	progress func()
}

// pass has a new rank serve all stages.
func (s *stagesRun) pass(ctx context.Context, tuned bool) (work []LiveWork, err error) {
	dir, err := os.MkdirTemp(s.o.Dir, "cascade-bench-stages-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	p := paths{dir: s.sockets, segments: filepath.Join(dir, "segments"), index: filepath.Join(dir, "index"), arena: filepath.Join(s.o.ShmDir, filepath.Base(dir)+".arena")}
	defer func() {
		_ = os.Remove(p.arena) // there is none after a clean end
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := s.warm(ctx, p); err != nil {
		return nil, fmt.Errorf("before the stages: %w", err)
	}
	r, err := startLive(ctx, 0, p, s.o.Memory, tuned)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	s.version = r.last.Version
	if err := r.settled(ctx); err != nil {
		return nil, err
	}
	for i, stage := range s.stages {
		w, err := s.stage(ctx, r, stage)
		if err != nil {
			return nil, fmt.Errorf("stage %d: %w", i+1, err)
		}
		work = append(work, w)
		s.progress()
	}
	return work, nil
}

// warm has another rank store the chains of the warm-up, and end.
func (s *stagesRun) warm(ctx context.Context, p paths) (err error) {
	p.index += "-warm"
	r, err := startLive(ctx, 1, p, s.o.Memory, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	_, _, err = s.serve(ctx, r, s.chains.heads[:s.o.Warm])
	return err
}

// serve has r serve requests and write what they stored.
func (s *stagesRun) serve(ctx context.Context, r *liveRank, requests []Request) (done served, seconds float64, err error) {
	conns := make([]*chainConn, s.o.Conns)
	defer func() {
		for _, c := range conns {
			if c != nil {
				err = errors.Join(err, c.close())
			}
		}
	}()
	for i := range conns {
		if conns[i], err = s.chains.dial(r.socket); err != nil {
			return done, 0, err
		}
	}
	began := time.Now()
	_, err = kit.Parallel(len(conns), len(requests), func(caller, i int) error {
		return errors.Join(ctx.Err(), conns[caller].serve(requests[i]))
	})
	if err != nil {
		return done, 0, errors.Join(err, r.Alive())
	}
	if err = r.drain(); err != nil {
		return done, 0, err
	}
	seconds = kit.Since(began)
	for _, c := range conns {
		done.add(c.done)
	}
	return done, seconds, nil
}

// stage measures one stage.
func (s *stagesRun) stage(ctx context.Context, r *liveRank, requests []Request) (w LiveWork, err error) {
	before, err := r.used()
	if err != nil {
		return w, err
	}
	if w.served, w.Seconds, err = s.serve(ctx, r, requests); err != nil {
		return w, err
	}
	w.Operations = w.served.operations()
	if !s.o.NoPause {
		began := time.Now()
		if err := r.judged(ctx); err != nil {
			return w, err
		}
		w.Pause = kit.Since(began)
	}
	after, err := r.used()
	if err != nil {
		return w, err
	}
	w.CPU = (after.cpu - before.cpu).Seconds()
	w.Written, w.Segments = float64(after.written-before.written), float64(after.segments-before.segments)
	w.Merged, w.Other = float64(after.merged().Written-before.merged().Written), w.Written-w.Segments
	w.Unmerged = w.Written - w.Merged
	w.Catalogue = catalogueWork(before.Catalogue, after.Catalogue)
	if c := &w.Catalogue; c.Entries > 0 {
		w.Estimate = kit.Round(c.WriteAmp * float64(c.Puts) * float64(c.DiskBytes) / float64(c.Entries))
	}
	return w, nil
}

// catalogueWork is what a catalogue did between two moments.
func catalogueWork(before, after *tiers.CatalogueState) CatalogueWork {
	c := CatalogueWork{
		Puts: after.Puts - before.Puts, Points: after.Points - before.Points, Ranges: after.Ranges - before.Ranges,
		Scanned: after.Scanned - before.Scanned, Absent: after.Absent - before.Absent, Retunes: after.Retunes - before.Retunes,
		T: after.SizeRatio, K: after.Runs, Entries: after.Entries, DiskBytes: after.DiskBytes,
		WriteAmp: kit.Round(after.WriteAmp), ReadAmp: after.ReadAmp, Tuner: after.Tuner,
	}
	c.Mix = c.counts().Mix()
	return c
}
