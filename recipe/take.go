package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zkagent/zkagent/session"
)

// watches are the two watches of a waiting consumer: one on the items, and one on the
// claims, because an item becomes available when its claim is deleted.
type watches [2]*session.Watch

func (w watches) stop() {
	for _, one := range w {
		one.Stop()
	}
}

// read lists the items that can be taken, in order, and sets watches if wanted.
func (q *items) read(ctx context.Context, watch bool) ([]item, watches, error) {
	era, err := q.ops.era(ctx) // before the list: then it is not newer
	if err != nil {
		return nil, watches{}, err
	}
	claims, items, set, err := q.names(ctx, watch)
	if err != nil {
		set.stop()
		return nil, watches{}, err
	}
	list := q.sorted(items.Names, claims.Names)
	for i := range list {
		list[i].listed, list[i].era = items.Stat.Pzxid, era
	}
	return list, set, nil
}

// names lists the claims and the items. Claims come first: an item whose claim was
// acknowledged in between is gone, too.
func (q *items) names(ctx context.Context, watch bool) (claims, items session.Listing, set watches, err error) { //nolint:nonamedreturns // four values
	if q.claims != "" {
		claims, set[0], err = q.listDir(ctx, q.claims, watch)
	}
	if err == nil {
		items, set[1], err = q.listDir(ctx, q.dir, watch)
	}
	if err == nil {
		err = q.otherLayout(items.Names)
	}
	return claims, items, set, err
}

// listDir lists a directory. While the directory does not exist, the watch fires when
// it is created.
func (q *items) listDir(ctx context.Context, dir string, watch bool) (list session.Listing, w *session.Watch, err error) { //nolint:nonamedreturns // one end
	if watch {
		list, w, err = q.s.ListW(ctx, dir)
	} else if list.Names, list.Stat, err = q.s.Children(ctx, dir); errors.Is(err, session.ErrNoNode) {
		err = nil
	}
	switch {
	case errors.Is(err, session.ErrTooLarge):
		err = fmt.Errorf("list %s: %w: %w", dir, ErrTooLong, err)
	case err != nil:
		err = fmt.Errorf("list %s: %w", dir, err)
	}
	return list, w, err
}

func (q *items) head() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return item{}, false
	}
	return q.list[0], true
}

// drop forgets the first item, unless another goroutine did. A consumer drops an item
// only when it knows what became of it. Otherwise later items would overtake an item
// whose consumer gave up.
func (q *items) drop(it item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) > 0 && q.list[0] == it {
		q.list = q.list[1:]
	}
}

func (q *items) fill(list []item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = list
}

// each offers the items to try, first to last, until try takes one or fails. It
// returns ErrEmpty when a list has nothing to take. When another consumer takes an
// item first, each continues with the next item of the same list.
func (q *items) each(ctx context.Context, try func(item) (bool, error)) error {
	if q.fresh {
		q.fill(nil)
	}
	for {
		it, ok := q.head()
		if !ok {
			list, _, err := q.read(ctx, false)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return ErrEmpty
			}
			q.fill(list)
			continue
		}
		if !it.ready() { // the items behind it are not due either
			return ErrEmpty
		}
		done, err := try(it)
		if errors.Is(err, errEra) {
			q.fill(nil)
			continue
		}
		if err != nil {
			return err
		}
		q.drop(it)
		if done {
			return nil
		}
	}
}

// blocking is each, but waits when there is no item. The list that finds no item also
// sets the watches, so blocking misses no later change.
func (q *items) blocking(ctx context.Context, try func(item) (bool, error)) error {
	for {
		err := q.each(ctx, try)
		if !errors.Is(err, ErrEmpty) {
			return err
		}
		list, set, err := q.read(ctx, true)
		if err != nil {
			return err
		}
		if len(list) == 0 || !list[0].ready() {
			err = q.rest(ctx, list, set)
		}
		set.stop()
		if err != nil {
			return err
		}
	}
}

// rest waits for a change, or until the first item is due.
func (q *items) rest(ctx context.Context, list []item, set watches) error {
	if len(list) == 0 {
		return q.s.WaitAny(ctx, set[:]...)
	}
	due, cancel := context.WithDeadline(ctx, time.UnixMilli(list[0].due))
	defer cancel()
	err := q.s.WaitAny(due, set[:]...)
	if due.Err() != nil && ctx.Err() == nil && q.s.Context().Err() == nil {
		return nil
	}
	return err
}

// Take waits for an item and takes it: at most once. When the error matches
// session.ErrUnknown, it may have taken an item, whose body is then lost.
func (q *items) Take(ctx context.Context) ([]byte, error) { return q.take(ctx, q.blocking) }

// TryTake is Take, but returns ErrEmpty instead of waiting.
func (q *items) TryTake(ctx context.Context) ([]byte, error) { return q.take(ctx, q.each) }

// finder offers items to a function until that takes one.
type finder func(context.Context, func(item) (bool, error)) error

func (q *items) take(ctx context.Context, find finder) ([]byte, error) {
	var body []byte
	err := find(ctx, func(it item) (bool, error) {
		var stat session.Stat
		var err error
		if body, _, stat, err = q.get(ctx, child(q.dir, it.name)); err != nil {
			return false, q.unlessSkipped(child(q.dir, it.name), err)
		}
		if !it.isListed(stat) {
			return false, errEra
		}
		if err = q.remove(ctx, it); isTaken(err) {
			return false, nil // another client has taken or reserved it
		}
		return err == nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("take from %s: %w", q.dir, err)
	}
	return body, nil
}

// unlessSkipped drops the error of an item that is gone, or that we cannot read: such
// an item must not block those behind it. It logs one that we cannot read, once.
func (q *items) unlessSkipped(path string, err error) error {
	switch {
	case errors.Is(err, session.ErrNoNode):
		return nil
	case !errors.Is(err, session.ErrNoAuth) && !errors.Is(err, ErrFormat):
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.skipped[base(path)] {
		q.skipped[base(path)] = true
		q.logger.Warn("skipped an item of the queue that cannot be used", "path", path, "err", err)
	}
	return nil
}

// remove deletes items of one list. It makes the directory of claims when that is
// missing.
func (q *items) remove(ctx context.Context, its ...item) error {
	ops := []session.Op{q.ops.sameEra(its[0].era)}
	for _, it := range its {
		ops = append(ops, q.removal(it.name)...)
	}
	err := q.ops.do(ctx, ops...)
	if q.noClaimDir(err) {
		if err = createContainers(ctx, q.s, child(q.claims, its[0].name)); err != nil {
			return err
		}
		err = q.ops.do(ctx, ops...)
	}
	return err
}

// noClaimDir reports whether the create of a claim found no parent.
func (q *items) noClaimDir(err error) bool {
	failed, ok := errors.AsType[*session.MultiError](err)
	return ok && q.claims != "" && errors.Is(failed.Err, session.ErrNoNode) && strings.HasPrefix(failed.Path, q.claims+"/")
}

// Reservation is an item that we have reserved. Other consumers do not get it until
// Return gives it back; Ack removes it from the queue. When the session ends first,
// other consumers can take the item again. So each item is delivered at least once.
type Reservation struct {
	q     *items
	hold  *Hold
	item  string
	claim string
	body  []byte
	data  []byte // of the item's znode; it contains the body
	// version is the item's data version: how often it has been reserved.
	version int32
	listed  item // as it was listed
}

// Body returns the body of the item.
func (r *Reservation) Body() []byte { return r.body }

// Path returns the path of the item.
func (r *Reservation) Path() string { return r.item }

// Context returns a context that ends with the reservation, with a cause. From then on
// another consumer may work on the item.
func (r *Reservation) Context() context.Context { return r.hold.Context() }

// Fence returns the czxid of the claim. It grows from reservation to reservation.
func (r *Reservation) Fence() int64 { return r.hold.Fence() }

// Reserve waits for an item and claims it: at least once. The error matches ErrDialect
// when the layout of the queue has no claims.
func (q *items) Reserve(ctx context.Context) (*Reservation, error) { return q.reserve(ctx, q.blocking) }

// TryReserve is Reserve, but returns ErrEmpty instead of waiting.
func (q *items) TryReserve(ctx context.Context) (*Reservation, error) { return q.reserve(ctx, q.each) }

func (q *items) reserve(ctx context.Context, find finder) (*Reservation, error) {
	var r *Reservation
	err := q.hasClaims()
	if err == nil {
		err = find(ctx, func(it item) (bool, error) {
			r, err = q.reserveItem(ctx, it)
			return r != nil, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reserve from %s: %w", q.dir, err)
	}
	return r, nil
}

func (q *items) hasClaims() error {
	if q.claims == "" {
		return fmt.Errorf("the layout has no claims: %w", ErrDialect)
	}
	return nil
}

// reserveItem claims one item. It returns nil when another client has it. The multi of
// the claim also writes the item's data again. So the data version counts the
// reservations, and the server can refuse an Ack of a previous one.
func (q *items) reserveItem(ctx context.Context, it item) (*Reservation, error) {
	r := &Reservation{q: q, item: child(q.dir, it.name), claim: child(q.claims, it.name), listed: it}
	body, data, stat, err := q.get(ctx, r.item)
	if err != nil {
		return nil, q.unlessSkipped(r.item, err)
	}
	if !it.isListed(stat) {
		return nil, errEra
	}
	if q.maxAttempts > 0 && int(stat.Version) >= q.maxAttempts {
		return nil, q.bury(ctx, it, body, stat.Version)
	}
	r.body, r.data, r.version = body, data, stat.Version+1
	claimed, err := q.claim(ctx, r)
	switch {
	case isTaken(err), errors.Is(err, session.ErrBadVersion):
		return nil, nil
	case err != nil:
		return nil, err
	}
	r.hold = newHold(ctx, q.s, q.claims, r.claim, claimed.Czxid, holdOptions{fixed: true})
	return r, nil
}

// claim creates the claim of an item if the item has not changed since it was read.
// The claim's data is a GUID. After a lost reply it shows whether the claim is ours.
func (q *items) claim(ctx context.Context, r *Reservation) (session.Stat, error) {
	token := []byte(newHex())
	for {
		results, err := q.s.Multi(ctx, q.ops.sameEra(r.listed.era),
			session.SetOp(r.item, r.data, r.version-1),
			session.CreateOp(r.claim, token, session.Ephemeral))
		switch {
		case err == nil:
			return results[2].Stat, nil
		case q.noClaimDir(err):
			if err = createContainers(ctx, q.s, r.claim); err != nil {
				return session.Stat{}, err
			}
			continue
		case !errors.Is(err, session.ErrUnknown):
			return session.Stat{}, q.ops.unlessEra(err)
		}
		stat, ours, err := q.isOurs(ctx, r.claim, token)
		if err != nil {
			inBackground(q.s, func(ctx context.Context) error {
				stat, still, again := q.isOurs(ctx, r.claim, token)
				if again != nil || !still {
					return again
				}
				return removeExactly(ctx, q.s, r.claim, stat.Czxid)
			})
		}
		if ours || err != nil {
			return stat, err
		}
	}
}

// isOurs reads a claim after a lost reply and reports whether it is ours.
func (q *items) isOurs(ctx context.Context, claim string, token []byte) (session.Stat, bool, error) {
	if err := q.s.Sync(ctx, claim); err != nil && !errors.Is(err, session.ErrNoNode) {
		return session.Stat{}, false, err
	}
	data, stat, err := q.s.Get(ctx, claim)
	if errors.Is(err, session.ErrNoNode) {
		return session.Stat{}, false, nil
	}
	return stat, err == nil && string(data) == string(token), err
}

// Ack removes the item from the queue. It returns an error that matches ErrNotHeld
// when the reservation has ended: the item may then be delivered again. The server
// decides. So an Ack while the session is suspended waits for a connection, and
// succeeds if the session survives.
//
// The operations of with are applied in the same transaction: the result of the work, or
// [Hold.Guard]. If one of them fails, Ack gives the item back and returns a
// *session.MultiError that names it.
func (r *Reservation) Ack(ctx context.Context, with ...session.Op) error {
	cause := r.hold.Err()
	if !r.hold.finish() {
		return fmt.Errorf("ack %s: %w", r.item, ErrNotHeld)
	}
	err := r.ack(ctx, cause, with)
	if err != nil {
		inBackground(r.q.s, r.hold.delete)
		return fmt.Errorf("ack %s: %w", r.item, err)
	}
	return nil
}

func (r *Reservation) ack(ctx context.Context, cause error, with []session.Op) error {
	if cause != nil && !errors.Is(cause, session.ErrSuspended) {
		return fmt.Errorf("%w: %w", ErrNotHeld, cause)
	}
	// Other programs claim an item without writing it, so check the claim too.
	stat, exists, err := r.q.s.Exists(ctx, r.claim)
	if err != nil {
		return err
	}
	if !exists || stat.Czxid != r.hold.fence {
		return ErrNotHeld
	}
	ops := []session.Op{r.q.ops.sameEra(r.listed.era), session.DeleteOp(r.item, r.version), session.DeleteOp(r.claim, stat.Version)}
	err = r.q.ops.do(ctx, append(ops, with...)...)
	if failed, ok := errors.AsType[*session.MultiError](err); ok && failed.Index >= len(ops) {
		failed.Index -= len(ops)
		return failed
	}
	if isTaken(err) || errors.Is(err, errEra) || !errors.Is(err, session.ErrUnknown) && errors.Is(err, session.ErrBadVersion) {
		return fmt.Errorf("%w: %w", ErrNotHeld, err)
	}
	return err
}

// Attempts returns how often the item has been reserved, this time included. It does
// not count reservations by programs that do not use this module.
func (r *Reservation) Attempts() int { return int(r.version) }

// Return gives the item back. It keeps its place: this consumer gets it before the items
// behind it. Another consumer may first deliver the items that it has listed already.
func (r *Reservation) Return(ctx context.Context) error {
	if err := r.hold.Release(ctx); err != nil {
		return fmt.Errorf("return %s: %w", r.item, err)
	}
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	if i, found := slices.BinarySearchFunc(r.q.list, r.listed, item.before); !found && len(r.q.list) > 0 {
		r.q.list = slices.Insert(r.q.list, i, r.listed)
	}
	return nil
}

// Name returns the name of the item. Another process of the same session takes the
// reservation over by this name.
func (r *Reservation) Name() string { return base(r.item) }

// Keep ends the reservation here and keeps the claim, for a process that takes the
// session over and calls TakeOver. If no such process comes, the claim ends with the
// session, and other consumers can take the item again.
func (r *Reservation) Keep() { r.hold.Keep() }

// TakeOver continues a reservation that a previous process of this session left
// with [Reservation.Keep]. The name is its [Reservation.Name]. The error matches
// ErrNotHeld when this session has no such claim.
func (q *items) TakeOver(ctx context.Context, name string) (*Reservation, error) {
	r := &Reservation{q: q, item: child(q.dir, name), claim: child(q.claims, name)}
	r.listed, _ = q.parse(name)
	err := q.hasClaims()
	if err == nil {
		r.listed.era, err = q.ops.era(ctx)
	}
	var claim, stat session.Stat
	if err == nil {
		claim, _, err = lookAgain(ctx, q.s, r.claim)
		if err == nil && claim.EphemeralOwner != q.s.ID() {
			err = ErrNotHeld
		}
	}
	if err == nil {
		r.body, r.data, stat, err = q.get(ctx, r.item)
		r.version, r.listed.name, r.listed.listed = stat.Version, name, stat.Czxid
	}
	if errors.Is(err, session.ErrNoNode) {
		err = ErrNotHeld // an operator removed the item
	}
	if err != nil {
		return nil, fmt.Errorf("take over %s: %w", r.item, err)
	}
	r.hold = newHold(ctx, q.s, q.claims, r.claim, claim.Czxid, holdOptions{fixed: true})
	return r, nil
}
