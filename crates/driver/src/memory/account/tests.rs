use super::*;
use proptest::prelude::*;

fn pool(of_each: u64) -> Arc<Account> {
    let (clients, descriptors, lines_bytes, memory_bytes) = (of_each, of_each, u64::MAX, of_each);
    Account::new(Amounts { clients, descriptors, lines_bytes, memory_bytes })
}

fn memory(most: Option<u64>, reserved: u64) -> Caps {
    Caps { memory_bytes: Cap { most, reserved }, ..Caps::default() }
}

fn short(exhausted: Exhausted) -> (Resource, Whose, u64) {
    match exhausted {
        Exhausted::Budget { resource, whose, most } => (resource, whose, most),
        other => panic!("{other}"),
    }
}

#[test]
fn all_accounts_pay_or_none() {
    let pool = pool(100);
    let tenant = pool.payer(memory(Some(50), 0));
    let (one, two) = (tenant.client(40), tenant.client(40));
    let lease = |of: &Arc<Account>, bytes| of.lease(Amounts::memory(bytes));
    let used = |of: &Arc<Account>| of.used().memory_bytes;
    let held = lease(&one, 40).unwrap();
    assert_eq!((used(&one), used(&tenant), used(&pool), one.leases()), (40, 40, 40, 1));
    assert_eq!(short(lease(&one, 1).unwrap_err()), (Resource::Memory, Whose::Client, 40));
    assert_eq!(two.free(), 10);
    assert_eq!(short(lease(&two, 11).unwrap_err()), (Resource::Memory, Whose::Tenant, 50));
    assert_eq!((used(&two), used(&tenant), used(&pool)), (0, 40, 40));
    drop(held);
    assert_eq!((used(&one), used(&tenant), used(&pool), one.leases()), (0, 0, 0, 0));
}

#[test]
fn a_payer_without_a_cap_gets_half_of_what_others_leave() {
    let pool = pool(1000);
    let payers = [(); 3].map(|()| pool.payer(Caps::default()));
    let held: Vec<_> = [500, 250, 125]
        .into_iter()
        .zip(&payers)
        .map(|(most, payer)| {
            assert_eq!(payer.standing(Resource::Clients).most, most);
            let all = |clients| payer.lease(Amounts { clients, ..Amounts::default() });
            assert_eq!(short(all(most + 1).unwrap_err()), (Resource::Clients, Whose::Tenant, most));
            assert_eq!(payer.standing(Resource::Clients).refused, 1);
            all(most).unwrap()
        })
        .collect();
    assert_eq!(pool.used().clients, 875);
    drop(held);
    assert_eq!(pool.used(), Amounts::default());
}

/// Processes attach, and streams go on, where regions have used up all that they may have.
#[test]
fn control_memory_and_small_rings_have_the_last_sixteenth() {
    const MIB: u64 = 1 << 20;
    let client = |most| pool(64 * MIB).payer(memory(Some(most), 0)).client(64 * MIB);
    let one = client(16 * MIB);
    let _regions = one.lease(Amounts::memory(15 * MIB)).unwrap();
    let beyond = [one.lease(Amounts::memory(4096)), one.lease_ring(Amounts::memory(MIB))];
    for refused in beyond {
        assert_eq!(short(refused.unwrap_err()), (Resource::Memory, Whose::Tenant, 16 * MIB));
    }
    let lines = |lines_bytes| one.lease(Amounts { lines_bytes, ..Amounts::default() });
    let _lines = lines(MIB - (256 << 10)).unwrap();
    assert_eq!(short(lines(4096).unwrap_err()).1, Whose::Tenant);
    let ring = || one.lease_ring(Amounts::memory(64 << 10));
    let _rings = [(); 4].map(|()| ring().unwrap());
    assert_eq!(short(ring().unwrap_err()).1, Whose::Tenant);
    // Small amounts are not kept from.
    assert!(client(2 * MIB).lease(Amounts::memory(2 * MIB)).is_ok());
}

#[test]
fn what_is_reserved_is_nobody_elses() {
    let pool = pool(1000);
    let (named, other) = (pool.payer(memory(None, 600)), pool.payer(memory(Some(1000), 0)));
    assert_eq!(pool.used().memory_bytes, 0);
    let all = other.lease(Amounts::memory(400)).unwrap();
    let refused = other.lease(Amounts::memory(1)).unwrap_err();
    assert_eq!(short(refused), (Resource::Memory, Whose::Pool, 1000));
    let own = named.lease(Amounts::memory(600)).unwrap();
    assert_eq!(pool.used().memory_bytes, 1000);
    drop((own, all));
    // The reserve ends with its tenant.
    drop(named);
    other.lease(Amounts::memory(1000)).unwrap();
}

#[test]
fn a_reserve_that_comes_late_is_there_when_others_give_back() {
    let pool = pool(1000);
    let (named, other) = (pool.payer(memory(None, 0)), pool.payer(memory(Some(1000), 0)));
    let (all, some) =
        (other.lease(Amounts::memory(900)).unwrap(), other.lease(Amounts::memory(100)).unwrap());
    named.set_caps(memory(None, 600));
    let client = named.client(1000);
    assert_eq!(client.free(), 0);
    assert_eq!(short(client.lease(Amounts::memory(1)).unwrap_err()), (Resource::Memory, Whose::Pool, 1000));
    drop(some);
    assert_eq!(client.free(), 100);
    let _own = client.lease(Amounts::memory(100)).unwrap();
    assert!(client.lease(Amounts::memory(1)).is_err());
    drop(all);
    client.lease(Amounts::memory(500)).unwrap();
}

#[test]
fn lines_count_for_the_tenant_and_not_for_the_pools_budget() {
    let pool = pool(1000);
    let client = pool.payer(memory(Some(500), 0)).client(1000);
    let lines = |lines_bytes| client.lease(Amounts { lines_bytes, ..Amounts::default() });
    let _held = (lines(300).unwrap(), lines(100).unwrap());
    assert_eq!((pool.used().memory_bytes, client.free()), (0, 100));
    assert_eq!(short(lines(101).unwrap_err()), (Resource::Memory, Whose::Tenant, 500));
    assert_eq!((client.free(), client.leases()), (100, 0));
}

#[test]
fn a_client_takes_what_it_holds_to_another_payer() {
    let pool = pool(1000);
    let (from, to) = (pool.payer(memory(None, 100)), pool.payer(memory(Some(10), 0)));
    let client = from.client(1000);
    let held = client.lease(Amounts { descriptors: 2, ..Amounts::memory(200) }).unwrap();
    client.move_below(&to);
    assert_eq!((from.used(), to.used()), (Amounts::default(), client.used()));
    assert!(client.lease(Amounts::memory(1)).is_err(), "it holds more than it may");
    drop(from);
    drop(held);
    assert_eq!((to.used(), pool.used()), (Amounts::default(), Amounts::default()));
}

#[derive(Clone, Debug)]
enum Step {
    Lease(usize, u64),
    GiveBack(usize),
    Caps(usize, Option<u64>, u64),
    Move(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..6usize, 1u64..200).prop_map(|(client, bytes)| Step::Lease(client, bytes)),
        4 => (0..40usize).prop_map(Step::GiveBack),
        1 => (0..3usize, prop::option::of(0u64..1000), 0u64..300).prop_map(|(at, most, kept)| Step::Caps(at, most, kept)),
        1 => (0..6usize, 0..3usize).prop_map(|(client, to)| Step::Move(client, to)),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Checks accounts against sums: holdings, that nobody gets more than its cap, and that nobody is refused less.
    #[test]
    fn accounts_are_sums(steps in steps()) {
        let pool = pool(1000);
        let payers = [(); 3].map(|()| pool.payer(Caps::default()));
        let clients: Vec<_> = (0..6).map(|at| payers[at % 3].client(400)).collect();
        let mut owner: Vec<usize> = (0..6).map(|at| at % 3).collect();
        let mut caps = [(None, 0u64); 3];
        let mut held: Vec<(usize, u64, Lease)> = Vec::new();
        for step in steps {
            let of_client = |client: usize| held.iter().filter(|h| h.0 == client).map(|h| h.1).sum::<u64>();
            let of_payer = |payer: usize| held.iter().filter(|h| owner[h.0] == payer).map(|h| h.1).sum::<u64>();
            let taken = |payer: usize| of_payer(payer).max(caps[payer].1);
            match step {
                Step::Lease(client, bytes) => {
                    let payer = owner[client];
                    let others: u64 = (0..3).filter(|&other| other != payer).map(taken).sum();
                    let most = caps[payer].0.unwrap_or((1000u64.saturating_sub(others) / 2).max(caps[payer].1));
                    let now = of_payer(payer) + bytes;
                    let grows = now.max(caps[payer].1) > taken(payer);
                    let fits = of_client(client) + bytes <= 400
                        && now <= most
                        && held.iter().map(|h| h.1).sum::<u64>() + bytes <= 1000
                        && (!grows || others + now.max(caps[payer].1) <= 1000);
                    let got = clients[client].lease(Amounts::memory(bytes));
                    prop_assert_eq!(got.is_ok(), fits, "{:?}", got);
                    held.extend(got.ok().map(|lease| (client, bytes, lease)));
                }
                Step::GiveBack(at) if at < held.len() => drop(held.swap_remove(at)),
                Step::GiveBack(_) => {}
                Step::Caps(payer, most, reserved) => {
                    let most = most.map(|most| most.max(reserved));
                    payers[payer].set_caps(memory(most, reserved));
                    caps[payer] = (most, reserved);
                }
                Step::Move(client, to) => {
                    clients[client].move_below(&payers[to]);
                    owner[client] = to;
                }
            }
            let all: u64 = held.iter().map(|h| h.1).sum();
            prop_assert_eq!(pool.used().memory_bytes, all);
        }
        drop(held);
        drop((clients, payers));
        prop_assert_eq!(pool.lock().entry(POOL).used, Amounts::default());
    }
}
