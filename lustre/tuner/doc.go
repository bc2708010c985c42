// Package tuner decides how a log-structured index should be shaped for the
// work it does: the adaptive controller of SGLang-LSM §3.3 and appendix C. It
// is pure: counts in, decisions out, no clock, no I/O, and the same input gives
// the same output. One goroutine at a time uses a Tuner. The package does not
// touch an index: it computes how one should be shaped, from what it holds.
//
// Glossary
//
//	T, K      size ratio between levels; sorted runs that a level may have.
//	          In a tree that is alike on all levels K = 1 is leveling and
//	          K = T − 1 is tiering
//	operation one entry put, one point lookup that hits or misses, or one
//	          range scan
//	mix       shares of these four in the operations of the window
//	shift     how far the mix has moved since it was last judged, 0 to 1: half
//	          the sum of the changes of each kind's share, of the cost or of
//	          the count, whichever moved more. Shares of the count alone would
//	          not do: puts come by the hundred for one scan
//
// # Costs
//
// In pages for each operation. N entries of E bytes, B = page / E of them on a
// page; a buffer of M bytes; L levels; R sorted runs that a search may meet;
// p = exp(−b·ln²2), the chance that a Bloom filter of b bits a key answers
// wrongly; f, what asking a filter costs; s, what a page costs when it moves in
// a large sequential transfer; D, how often an entry is rewritten.
//
//	put    W = s·(1 + 2·D) / B       written once by the flush, then read and
//	                                 written D times by compactions
//	hit    V = 1 + p·(R − 1) + f·R   the page with the entry, the pages that a
//	                                 filter of another run promised in vain
//	miss   Q = p·R + f·R
//	range  S = R + e / B             one page of each run, and those that the e
//	                                 entries of the result fill
//
// These are worst cases of a full tree, in the form that Monkey and Dostoevsky
// (SIGMOD 2017, 2018) gave them; they rank settings and predict no device. Two
// shapes of tree give L, R and D:
//
//	Tiered  the paper's. Each level has up to K runs; level i has room for
//	        (T − 1)·T^(i−1) buffers, so
//	        L = ⌈log_T(N·E/M + 1)⌉, R = K·L, D = L·(T − 1)/(K + 1)
//	Pebble  what Pebble can do: K runs of a buffer each in its top level, one
//	        run in each level below; the first of these has A bytes, each other
//	        T times as many as the one above it.
//	        L = ⌈log_T(N·E·(T − 1)/A + 1)⌉ of these, R = K + L,
//	        D = 1 + a/(2·K·M) + (L − 1)·(T + 1)/2, a = min(N·E, A): a merge of
//	        the top level rewrites K buffers and half of the first level; in
//	        each deeper one an entry is rewritten on its arrival and (T − 1)/2
//	        times after it
//
// More writes ask for a larger K in both. A larger T means fewer levels, which
// is good for searches; for writes it is good beside a large K in a Tiered tree,
// and bad in one of Pebble's, where it makes every merge dearer.
//
// # Deciding
//
// Observe counts. Step judges when the window is full and the mix has shifted
// by Threshold, or the number of entries has doubled, halved, or changed the
// cost by MinGain; and when the mix has settled: the youngest quarter of the
// window looks like all of it (or a whole window has passed, for some work
// never settles). It tries every T and K in bounds with the mix. A change must save MinGain of the cost and keep MinOps
// operations of distance to the last one. So noise around one mix is not
// judged, and what lies between two settings stays where it is.
//
// # Applying
//
// A change is pending until the owner of the index has made it, at a moment of
// its choice: making it means a reopen. If the work changes back before that,
// Step withdraws it.
//
//	d := t.Step(tree)                   // log a Change, a Keep, a Withdrawn
//	if p, ok := t.Pending(); ok && quiet() {
//		t.Done(p, index.Retune(ctx, p.To.T, p.To.K))
//	}
package tuner
