package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cascadekv/internal/admin"
	"cascadekv/internal/args"
	"cascadekv/internal/glob"
)

// moduleVersion is how clients see that docs/protocol.md §7 is served.
const moduleVersion = 2

// handlers are the commands a rank serves, docs/protocol.md §3, §6 and §7.
var handlers map[string]handler

func init() { // refers to commands that list it
	handlers = map[string]handler{
		"CASCADE.DEL":   {run: bounded(cmdCascadeDel), min: 3},
		"CASCADE.CLEAR": {run: bounded(cmdCascadeClear), min: 2, max: 2},
		"CASCADE.SCAN":  {run: cmdCascadeScan, min: 3},

		"GET":      {run: cmdGet, min: 2, max: 2, asks: true, brief: briefGet},
		"SET":      {run: cmdSet, min: 3, brief: briefSet},
		"MGET":     {run: cmdMGet, min: 2},
		"EXISTS":   {run: bounded(cmdExists), min: 2, asks: true, brief: briefExists},
		"DEL":      {run: bounded(cmdDel), min: 2},
		"UNLINK":   {run: bounded(cmdDel), min: 2},
		"STRLEN":   {run: bounded(cmdStrlen), min: 2, max: 2},
		"TYPE":     {run: bounded(cmdType), min: 2, max: 2},
		"TTL":      {run: ttl(time.Second), min: 2, max: 2},
		"PTTL":     {run: ttl(time.Millisecond), min: 2, max: 2},
		"EXPIRE":   {run: expire(time.Second), min: 3, max: 3},
		"PEXPIRE":  {run: expire(time.Millisecond), min: 3, max: 3},
		"SCAN":     {run: cmdScan, min: 2},
		"DBSIZE":   {run: cmdDBSize, min: 1, max: 1},
		"FLUSHDB":  {run: bounded(cmdFlushDB), min: 1, max: 2},
		"PING":     {run: cmdPing, min: 1, max: 2, brief: briefPing},
		"ECHO":     {run: cmdEcho, min: 2, max: 2},
		"SELECT":   {run: cmdSelect, min: 2, max: 2},
		"CLIENT":   {run: cmdClient, min: 2},
		"RESET":    {run: cmdReset, min: 1, max: 1, open: true},
		"QUIT":     {run: cmdQuit, min: 1, open: true},
		"AUTH":     {run: cmdAuth, min: 2, max: 3, open: true},
		"HELLO":    {run: cmdHello, min: 1, open: true},
		"INFO":     {run: cmdInfo, min: 1},
		"COMMAND":  {run: cmdCommand, min: 1},
		"CONFIG":   {run: cmdConfig, min: 2},
		"CLUSTER":  {run: cmdCluster, min: 1},
		"READONLY": {run: cmdCluster, min: 1},

		"CASCADE.PUT":    {run: cmdCascadePut, min: 3},
		"CASCADE.ALIAS":  {run: cmdCascadeAlias, min: 3},
		"CASCADE.GET":    {run: cmdCascadeGet, min: 2, max: 4},
		"CASCADE.PROBE":  {run: bounded(cmdCascadeProbe), min: 3},
		"CASCADE.ADVISE": {run: bounded(cmdCascadeAdvise), min: 4},
		"CASCADE.HINT":   {run: bounded(cmdCascadeHint), min: 5},
		"CASCADE.STAT":   {run: bounded(cmdCascadeStat), min: 3, max: 3},
		"CASCADE.LAYOUT": {run: cmdCascadeLayout, min: 2},
		"CASCADE.STATS":  {run: cmdCascadeStats, min: 1, max: 1},
		"CASCADE.DRAIN":  {run: cmdCascadeDrain, min: 1, max: 1},
		"CASCADE.RANKS":  {run: bounded(cmdCascadeRanks), min: 1, max: 1},
		"CASCADE.RING":   {run: bounded(cmdCascadeRing), min: 3, max: 3},
		"CASCADE.WHY":    {run: bounded(cmdCascadeWhy), min: 3, max: 3},

		"CASCADE.ARENA":    {run: cmdCascadeArena, min: 1, max: 1, own: true},
		"CASCADE.INDEX":    {run: cmdCascadeIndex, min: 1, max: 2, own: true},
		"CASCADE.GETSHM":   {run: cmdCascadeGetShm, min: 3, own: true},
		"CASCADE.RELEASE":  {run: cmdCascadeRelease, min: 2, own: true},
		"CASCADE.STAGE":    {run: cmdCascadeStage, min: 2, own: true},
		"CASCADE.COMMIT":   {run: cmdCascadeCommit, min: 4, own: true},
		"CASCADE.ABORT":    {run: cmdCascadeAbort, min: 2, own: true},
		"CASCADE.PIN":      {run: bounded(cmdCascadePin), min: 3, own: true},
		"CASCADE.UNPIN":    {run: cmdCascadeUnpin, min: 3, own: true},
		"CASCADE.EVENTS":   {run: cmdCascadeEvents, min: 2, max: 6, own: true},
		"CASCADE.TRAFFIC":  {run: cmdCascadeTraffic, min: 2, max: 6, own: true},
		"CASCADE.CONTAINS": {run: bounded(cmdCascadeContains), min: 3, own: true, brief: briefContains},

		"CASCADE.REGION":  {run: cmdCascadeRegion, min: 2, max: 5, own: true},
		"CASCADE.STORE":   {run: cmdCascadeStore, min: 6, own: true},
		"CASCADE.LOAD":    {run: cmdCascadeLoad, min: 6, own: true},
		"CASCADE.DONE":    {run: cmdCascadeDone, min: 1, max: 2, own: true},
		"CASCADE.UPGRADE": {run: cmdCascadeUpgrade, min: 1, max: 5, own: true},

		"CASCADE.CANCEL": {run: cmdCascadeCancel, min: 2, max: 2, own: true},
	}
}

// bounded makes a handler of one whose context ends when the client must have its
// answer.
func bounded(run func(ctx context.Context, c *conn, args [][]byte)) func(c *conn, args [][]byte) {
	return func(c *conn, args [][]byte) {
		ctx, cancel := c.Context()
		defer cancel()
		run(ctx, c, args)
	}
}

func cmdPing(c *conn, args [][]byte) {
	if len(args) == 2 {
		c.wr.Bulk(args[1])
		return
	}
	c.wr.Simple("PONG")
}

func cmdEcho(c *conn, args [][]byte) { c.wr.Bulk(args[1]) }

func cmdSelect(c *conn, args [][]byte) {
	n, err := strconv.Atoi(string(args[1]))
	if err != nil || n < 0 || n >= databases {
		c.wr.Error("ERR DB index is out of range")
		return
	}
	c.together.End(c.srv.opt.Store, c.ns)
	c.selectDB(n)
	c.wr.Simple("OK")
}

func cmdReset(c *conn, _ [][]byte) {
	c.reset()
	c.wr.Simple("RESET")
}

func cmdQuit(c *conn, _ [][]byte) {
	c.quit = true
	c.wr.Simple("OK")
}

func cmdAuth(c *conn, args [][]byte) {
	user, password := "default", string(args[len(args)-1])
	if len(args) == 3 {
		user = string(args[1])
	}
	if *c.srv.secret.Load() == "" {
		c.wr.Error("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
		return
	}
	if refusal := c.authenticate(user, password); refusal != "" {
		c.wr.Error(refusal)
		return
	}
	c.wr.Simple("OK")
}

func cmdHello(c *conn, words [][]byte) {
	o, bad := args.ParseHello(words[1:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	if len(o.Name) > maxName {
		c.wr.Error(errName)
		return
	}
	open := *c.srv.secret.Load() == ""
	if o.Auth && !(open && o.User == "default") {
		if refusal := c.authenticate(o.User, o.Password); refusal != "" {
			c.wr.Error(refusal)
			return
		}
	}
	if !c.authed {
		c.wr.Error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	}
	if o.Named {
		c.name = o.Name
	}
	c.wr.SetProto(cmp.Or(o.Proto, c.wr.Proto()))
	c.hello()
}

func (c *conn) hello() {
	c.wr.Map(7)
	for _, kv := range [][2]string{{"server", "redis"}, {"version", admin.RedisVersion}} {
		c.wr.BulkString(kv[0])
		c.wr.BulkString(kv[1])
	}
	c.wr.BulkString("proto")
	c.wr.Int(int64(c.wr.Proto()))
	c.wr.BulkString("id")
	c.wr.Int(int64(c.id))
	for _, kv := range [][2]string{{"mode", "standalone"}, {"role", "master"}} {
		c.wr.BulkString(kv[0])
		c.wr.BulkString(kv[1])
	}
	c.wr.BulkString("modules")
	if !c.own {
		c.wr.Array(0)
		return
	}
	c.wr.Array(1)
	c.wr.Map(2)
	c.wr.Text("name", "cascade")
	c.wr.Number("ver", moduleVersion)
}

var errName = fmt.Sprintf("ERR Client names cannot be longer than %d bytes", maxName)

func cmdClient(c *conn, args [][]byte) {
	switch sub := strings.ToUpper(string(args[1])); {
	case sub == "SETINFO" && len(args) == 4:
		c.wr.Simple("OK")
	case sub == "SETNAME" && len(args) == 3 && len(args[2]) > maxName:
		c.wr.Error(errName)
	case sub == "SETNAME" && len(args) == 3:
		c.name = string(args[2])
		c.wr.Simple("OK")
	case sub == "GETNAME" && len(args) == 2:
		if c.name == "" {
			c.wr.Null()
			return
		}
		c.wr.BulkString(c.name)
	case sub == "ID" && len(args) == 2:
		c.wr.Int(int64(c.id))
	default:
		c.wr.Error("ERR unknown subcommand or wrong number of arguments for 'CLIENT " + sub + "'")
	}
}

func cmdCluster(c *conn, _ [][]byte) {
	c.wr.Error("ERR This instance has cluster support disabled")
}

func cmdInfo(c *conn, args [][]byte) {
	sections := map[string]bool{}
	for _, a := range args[1:] {
		sections[strings.ToLower(string(a))] = true
	}
	r := admin.Redis{Socket: c.srv.opt.Socket, MaxClients: c.srv.limits.Load().MaxConnections, Arena: arenaPath(c.srv.opt.Store)}
	for n := range databases {
		r.Databases = append(r.Databases, databaseNamespace(n))
	}
	c.wr.Verbatim("txt", admin.Info(c.srv.Snapshot(), r, sections))
}

func cmdDBSize(c *conn, _ [][]byte) { c.wr.Int(int64(c.srv.opt.Store.Len(c.ns))) }

func cmdFlushDB(ctx context.Context, c *conn, words [][]byte) {
	if len(words) == 2 {
		if w := strings.ToUpper(string(words[1])); w != "ASYNC" && w != "SYNC" {
			c.wr.Error(args.Syntax)
			return
		}
	}
	c.srv.opt.Store.Clear(ctx, c.ns, false)
	c.wr.Simple("OK")
}

const (
	// scanFor is how long a SCAN looks on before it answers with what it has,
	// and a cursor. Long keys and patterns with many stars take long to match.
	scanFor = 200 * time.Millisecond
)

func cmdScan(c *conn, words [][]byte) { c.scan(c.ns, words[1:]) }

// scan answers SCAN in a namespace; words are its cursor and options.
func (c *conn) scan(ns string, words [][]byte) {
	cursor, err := strconv.ParseUint(string(words[0]), 10, 64)
	if err != nil {
		c.wr.Error("ERR invalid cursor")
		return
	}
	o, bad := args.ParseScan(words[1:])
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	var keys []string
	began := time.Now()
	next := c.srv.opt.Store.Scan(ns, cursor, o.Count, func(key string) bool {
		if (o.Kind == "" || o.Kind == "string") && (o.Match == nil || o.Match.Match(key)) {
			keys = append(keys, key)
		}
		return time.Since(began) < scanFor
	})
	c.wr.Array(2)
	c.wr.BulkString(strconv.FormatUint(next, 10))
	c.wr.Array(len(keys))
	for _, k := range keys {
		c.wr.BulkString(k)
	}
}

func cmdCommand(c *conn, args [][]byte) {
	sub := ""
	if len(args) > 1 {
		sub = strings.ToUpper(string(args[1]))
	}
	switch sub {
	case "COUNT":
		c.wr.Int(int64(len(handlers)))
	case "DOCS":
		c.wr.Map(0)
	case "", "INFO", "LIST":
		names := slices.Sorted(maps.Keys(handlers))
		if sub == "INFO" && len(args) > 2 {
			names = names[:0]
			for _, a := range args[2:] {
				names = append(names, strings.ToUpper(string(a)))
			}
		}
		c.wr.Array(len(names))
		for _, n := range names {
			if sub == "LIST" {
				c.wr.BulkString(strings.ToLower(n))
				continue
			}
			c.describe(n)
		}
	default:
		c.wr.Error("ERR unknown subcommand '" + sub + "'")
	}
}

// describe appends one command as COMMAND INFO does: name, arity (negative:
// at least), flags, and where its keys are.
func (c *conn) describe(name string) {
	h, ok := handlers[name]
	if !ok {
		c.wr.Null()
		return
	}
	arity := h.min
	if h.max != h.min {
		arity = -h.min
	}
	first, last := args.KeysOf(name)
	c.wr.Array(6)
	c.wr.BulkString(strings.ToLower(name))
	c.wr.Int(int64(arity))
	c.wr.Array(0)
	c.wr.Int(first)
	c.wr.Int(last)
	c.wr.Int(min(first, 1))
}

func cmdConfig(c *conn, words [][]byte) {
	if strings.ToUpper(string(words[1])) != "GET" || len(words) < 3 {
		c.wr.Error("ERR a rank is configured by its file, environment and flags; CONFIG GET only")
		return
	}
	values := admin.ConfigValues(c.srv.opt.Store.Stats(), c.srv.limits.Load().MaxConnections, maxBulk, databases)
	if own := c.srv.opt.Config; own != nil {
		maps.Copy(values, own())
	}
	asked := map[string]bool{}
	for _, pattern := range words[2:] {
		if len(pattern) > glob.MaxPattern {
			c.wr.Error(args.Pattern)
			return
		}
		g, _ := glob.Compile(strings.ToLower(string(pattern)))
		for name := range values {
			if g.Match(name) {
				asked[name] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(asked))
	c.wr.Map(len(names))
	for _, n := range names {
		c.wr.BulkString(n)
		c.wr.BulkString(values[n])
	}
}
