package rank

import (
	"strings"
	"sync"

	"cascadekv/cascade"
	"cascadekv/internal/config"
	"cascadekv/internal/descriptors"
	"cascadekv/internal/server"
)

// Load reads the configuration and the password of clients, "" for none.
func Load(s config.Sources) (*config.Loaded, string, error) {
	loaded, err := config.Load(s)
	if err != nil {
		return nil, "", err
	}
	if _, err := layoutOf(loaded.Lustre); err != nil {
		return nil, "", loaded.Refuse("lustre.setstripe", strings.ReplaceAll(err.Error(), "\n", "; "), "")
	}
	password, err := loaded.Password()
	return loaded, password, err
}

// settings are what a reload replaces, and the number of ranks that share a budget.
// They keep the store's limits up to date: mu is held before the store's mutex.
type settings struct {
	store *cascade.Store
	mu    struct {
		sync.Mutex
		config   config.Config
		password string // of clients
		ranks    int    // that share lustre.budget
	}
}

func newSettings(store *cascade.Store, c config.Config, password string) *settings {
	s := &settings{store: store}
	s.mu.config, s.mu.password, s.mu.ranks = c, password, 1
	return s
}

// get returns the configuration in force and the password of clients.
func (s *settings) get() (config.Config, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.config, s.mu.password
}

// texts is the configuration in force, by key.
func (s *settings) texts() map[string]string {
	c, _ := s.get()
	return c.Texts()
}

func (s *settings) replace(c config.Config, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.config, s.mu.password = c, password
	s.store.SetLimits(storeLimits(c, s.mu.ranks))
}

// resize gives this rank its share among so many.
func (s *settings) resize(ranks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ranks != ranks && ranks > 0 {
		s.mu.ranks = ranks
		s.store.SetLimits(storeLimits(s.mu.config, ranks))
	}
}

func storeLimits(c config.Config, ranks int) cascade.Limits {
	return cascade.Limits{
		ColdBytes:    int64(c.Lustre.Budget) / int64(ranks),
		NameBytes:    c.NameBytes(),
		RoomDeadline: c.Deadline.Room.Std(), FetchDeadline: c.Deadline.Fetch.Std(), CleanAbove: c.CleanAbove,
		StoreThreshold: c.StoreThreshold, StorePromptOnly: c.StorePrompts,
		WriteRate: int64(c.Lustre.MaxWrite), ReadRate: int64(c.Lustre.MaxRead), DeepWriteRate: int64(c.NVMe.MaxWrite),
	}
}

// serverLimits are those of the configuration, as far as the descriptors reach.
func serverLimits(c config.Config, password string, files descriptors.Split) server.Limits {
	return server.Limits{
		Password: password, MaxConnections: min(c.MaxConnections, files.Connections), Shared: files.Shared, Lease: c.Lease.Std(), FixedMiss: c.Resp.NativeMiss == "auto",
	}
}
