package jetstream

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

const (
	globalAccount = "$G"
	systemAccount = server.DEFAULT_SYSTEM_ACCOUNT

	// anonymousUser stands for clients without credentials, where the operator asks for none.
	anonymousUser = "allocnode-anonymous"
)

var accountName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// identity is an internal user: an nkey made at start, whose private half never leaves the process.
type identity struct {
	public string
	sign   func(nonce []byte) ([]byte, error)
}

func newIdentity() (identity, error) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		return identity{}, fmt.Errorf("make the key of an internal user: %w", err)
	}
	public, err := kp.PublicKey()
	if err != nil {
		return identity{}, fmt.Errorf("make the key of an internal user: %w", err)
	}
	return identity{public: public, sign: kp.Sign}, nil
}

// addUsers adds the log's account and the internal users to opts, beside whatever the operator set up.
//
// The users have nkeys, not passwords: nats-server looks at nkeys first, so a single user and password, a token, and
// users that are mapped from TLS certificates go on working, which they would not beside users with passwords.
func (s *Server) addUsers(opts *server.Options) []error {
	var faults []error
	refuse := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(opts.TrustedOperators) > 0 || len(opts.TrustedKeys) > 0 {
		refuse("operator and trusted_keys (JWT accounts) cannot be combined with an embedded server, since it would refuse " +
			"the node's own users: define accounts in the configuration, " +
			"or run nats-servers of your own and name them in alloc { nats }")
	}
	if opts.CustomClientAuthentication != nil {
		refuse("CustomClientAuthentication would refuse the node's own users: use users or accounts")
	}
	name := s.cfg.LogAccount
	faults = append(faults, reserved(opts, name)...)

	var service *server.Account // nil is the global account
	switch want := s.cfg.ServiceAccount; want {
	case "", globalAccount:
	case name, cmp.Or(opts.SystemAccount, systemAccount):
		refuse("the service cannot answer in account %s, which is internal: name an account of the clients", want)
	default:
		i := slices.IndexFunc(opts.Accounts, func(a *server.Account) bool { return a.Name == want })
		if i < 0 {
			refuse("the service's account %s is not defined: add it to accounts { }", want)
			break
		}
		service = opts.Accounts[i]
	}

	// nats-server's own parser is the only way to an account that has JetStream from the start. Turning it on after the
	// start would let a clustered server replay the assignments of streams whose account does not have it yet.
	var ours server.Options
	if err := ours.ProcessConfigString(fmt.Sprintf("accounts { %s { jetstream: enabled } }", name)); err != nil ||
		!accountName.MatchString(name) {
		refuse("the log's account cannot be named %q: use letters, digits, '_' and '-'", name)
	}
	if len(faults) > 0 {
		return faults
	}

	if openToAll(opts) {
		opts.Users = append(opts.Users, &server.User{Username: anonymousUser})
		opts.NoAuthUser = anonymousUser
	} else if service == nil && !reachesGlobal(opts) {
		s.log.Warn("the service answers in the global account, which none of the configured users belongs to: name their account")
	}
	opts.Accounts = append(opts.Accounts, ours.Accounts...)
	inProcess := map[string]struct{}{jwt.ConnectionTypeInProcess: {}}
	var logErr, svcErr error
	s.logUser, logErr = newIdentity()
	s.svcUser, svcErr = newIdentity()
	if err := cmp.Or(logErr, svcErr); err != nil {
		return []error{err}
	}
	opts.Nkeys = append(opts.Nkeys,
		&server.NkeyUser{Nkey: s.logUser.public, Account: ours.Accounts[0], AllowedConnectionTypes: inProcess},
		&server.NkeyUser{Nkey: s.svcUser.public, Account: service, AllowedConnectionTypes: inProcess})
	if opts.AuthCallout != nil {
		// The operator's callout knows nothing of our users.
		callout := *opts.AuthCallout
		callout.AuthUsers = append(slices.Clone(callout.AuthUsers), s.logUser.public, s.svcUser.public)
		opts.AuthCallout = &callout
	}
	return nil
}

// reserved finds uses of the log's account in the operator's configuration.
func reserved(opts *server.Options, name string) []error {
	var faults []error
	check := func(where, account string) {
		if account == name {
			faults = append(faults, fmt.Errorf("%s: the account %s is the log's own: choose another name", where, name))
		}
	}
	for _, a := range opts.Accounts {
		check("accounts", a.Name)
	}
	check("system_account", opts.SystemAccount)
	check("leafnodes.authorization.account", opts.LeafNode.Account)
	for _, u := range opts.LeafNode.Users {
		if u.Account != nil {
			check("leafnodes.authorization.users", u.Account.Name)
		}
	}
	for _, r := range opts.LeafNode.Remotes {
		check("leafnodes.remotes.account", r.LocalAccount)
	}
	if opts.AuthCallout != nil {
		check("auth_callout.account", opts.AuthCallout.Account)
		for _, a := range opts.AuthCallout.AllowedAccounts {
			check("auth_callout.allowed_accounts", a)
		}
	}
	return faults
}

// openToAll reports whether nats-server would let any client in by opts; with our users it no longer would by itself.
func openToAll(opts *server.Options) bool {
	if opts.Users == nil && opts.Nkeys == nil {
		if opts.Username != "" || opts.Authorization != "" {
			return false
		}
		// Certificates are still verified, but there are no users to map them to, our anonymous one least of all.
		opts.TLSMap, opts.Websocket.TLSMap, opts.MQTT.TLSMap, opts.LeafNode.TLSMap = false, false, false, false
		return true
	}
	return opts.NoAuthUser == "" && opts.AuthCallout == nil && onlySystemAccount(opts)
}

// onlySystemAccount reports whether the operator configured no more than the system account and its users. nats-server
// then lets everybody else into the global account without credentials, unless there is an authorization block; it
// counts accounts for that, and ours would break the count (server.go, configureAccounts).
func onlySystemAccount(opts *server.Options) bool {
	system := opts.SystemAccount
	for _, a := range opts.Accounts {
		if a.Name == systemAccount {
			system = cmp.Or(system, systemAccount)
		}
	}
	for _, a := range opts.Accounts {
		if a.Name != globalAccount && a.Name != system {
			return false
		}
	}
	// The field is private. Should it ever go, the answer is the strict one.
	block := reflect.ValueOf(opts).Elem().FieldByName("authBlockDefined")
	return system != "" && block.IsValid() && block.Kind() == reflect.Bool && !block.Bool()
}

// reachesGlobal reports whether some client can be a user of the global account.
func reachesGlobal(opts *server.Options) bool {
	global := func(a *server.Account) bool { return a == nil || a.Name == globalAccount }
	return opts.Username != "" || opts.Authorization != "" || opts.AuthCallout != nil ||
		slices.ContainsFunc(opts.Users, func(u *server.User) bool { return global(u.Account) }) ||
		slices.ContainsFunc(opts.Nkeys, func(u *server.NkeyUser) bool { return global(u.Account) })
}
