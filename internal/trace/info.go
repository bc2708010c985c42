package trace

import "io"

// Source yields requests in order, io.EOF at the end. Reader and Synth are sources.
type Source interface {
	// Next reads the next request into req, reusing the capacity of req.Hashes.
	Next(req *Request) error
}

// Info summarises a trace. The hit figures are those of a cache without limits
// that stores every block of every request, under the prefix rule: a block is
// hit when it and all blocks before it in its request were seen earlier.
type Info struct {
	Requests     int   `json:"requests"`
	Blocks       int64 `json:"blocks"`        // Σ over requests
	UniqueBlocks int64 `json:"unique_blocks"` // distinct hash ids
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	LongestInput int   `json:"longest_input"` // tokens
	Milliseconds int64 `json:"milliseconds"`  // from the first request to the last

	HitBlocks      int64   `json:"hit_blocks"`
	HitTokens      int64   `json:"hit_tokens"`
	HitRatioBlocks float64 `json:"hit_ratio_blocks"`
	HitRatioTokens float64 `json:"hit_ratio_tokens"`

	// Reparented counts blocks that follow different blocks in different
	// requests. Above zero, hash ids do not stand for prefixes and the hit
	// figures of any prefix cache mean little.
	Reparented int64 `json:"reparented"`

	// Assumed is for the caller, who has the Reader.
	Assumed Assumed `json:"assumed,omitzero"`
}

// Summarize reads src to its end, at most limit requests unless limit is 0.
// blockTokens is 0 for BlockTokens. It keeps 16 bytes per distinct block.
func Summarize(src Source, blockTokens, limit int) (Info, error) {
	s := NewSummary(blockTokens)
	var req Request
	for limit <= 0 || s.info.Requests < limit {
		err := src.Next(&req)
		if err == io.EOF {
			break
		}
		if err != nil {
			return Info{}, err
		}
		s.Add(&req)
	}
	return s.Info(), nil
}

// Summary summarises requests one by one. It is not safe for concurrent use.
type Summary struct {
	info        Info
	blockTokens int
	first, last int64
	parents     map[uint64]uint64 // of every block seen, the one before it
}

// NewSummary returns an empty Summary; blockTokens is 0 for BlockTokens.
func NewSummary(blockTokens int) *Summary {
	return &Summary{blockTokens: blockTokens, parents: make(map[uint64]uint64)}
}

// Info returns the summary of the requests added so far.
func (s *Summary) Info() Info {
	info := s.info
	info.UniqueBlocks = int64(len(s.parents))
	info.Milliseconds = s.last - s.first
	info.HitRatioBlocks = ratio(info.HitBlocks, info.Blocks)
	info.HitRatioTokens = ratio(info.HitTokens, info.InputTokens)
	return info
}

// Add counts one request, which it does not keep.
func (s *Summary) Add(req *Request) {
	info := &s.info
	if info.Requests == 0 {
		s.first, s.last = req.Timestamp, req.Timestamp
	}
	s.first, s.last = min(s.first, req.Timestamp), max(s.last, req.Timestamp)
	info.Requests++
	info.Blocks += int64(len(req.Hashes))
	info.InputTokens += int64(req.InputTokens)
	info.OutputTokens += int64(req.OutputTokens)
	info.LongestInput = max(info.LongestInput, req.InputTokens)
	prefix, parent := true, ^uint64(0)
	for i, h := range req.Hashes {
		p, seen := s.parents[h]
		if prefix = prefix && seen; prefix {
			info.HitBlocks++
			info.HitTokens += int64(req.Tokens(i, s.blockTokens))
		}
		if !seen {
			s.parents[h] = parent
		} else if p != parent {
			info.Reparented++
		}
		parent = h
	}
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
