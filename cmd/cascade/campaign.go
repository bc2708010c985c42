package main

import (
	"errors"
	"sync"

	"cascadekv/lustre/campaign"
)

// campaignOptions are what the verbs on a campaign's directory have in common,
// with a bar for bytes. The caller ends the bar with finish.
func (a *app) campaignOptions(dir, what string, jobs int) (o campaign.Options, finish func()) {
	bar := a.progress(-1, what, true)
	var mu sync.Mutex
	known := int64(-1)
	o = campaign.Options{Dir: dir, Jobs: jobs, Progress: func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if total != known && total > 0 {
			known = total
			bar.ChangeMax64(total)
		}
		_ = bar.Set64(done) // drawing is best effort
	}}
	return o, func() {
		mu.Lock()
		defer mu.Unlock()
		_ = bar.Finish() // likewise
	}
}

// cannotRun makes a directory that is no campaign a usage error.
func cannotRun(err error) error {
	if errors.Is(err, campaign.ErrNoCampaign) {
		return usageError{err}
	}
	return err
}
