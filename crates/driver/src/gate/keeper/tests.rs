use super::super::scene::Space;
use super::*;
use crate::process::network_namespace;
use crate::SystemClock;
use std::net::TcpStream;

/// Address that no other test connects to.
const PLACE: &str = "127.0.0.77";

fn errno(port: u16) -> i32 {
    TcpStream::connect((PLACE, port)).unwrap_err().raw_os_error().unwrap()
}

/// Removes the programs of a gate that was opened there.
struct End(PathBuf);

impl Drop for End {
    fn drop(&mut self) {
        if let Ok((_, mut keeper)) =
            Gate::open(&self.0, &SystemClock::default(), Mailbox::new().unwrap(), None, None)
        {
            keeper.programs.end();
        }
    }
}

#[test]
fn two_generations_never_share_a_place() {
    assert_eq!(following(0, None), 1);
    assert_eq!(following(1, Some(1)), 2);
    // The kernel did not take the one staged in between.
    assert_eq!(following(2, Some(1)), 4);
    assert_eq!(following(u32::MAX, Some(2)), 1);
}

/// Runs in this process's own network namespace, towards an address that a rule names.
#[test]
fn a_staged_policy_binds_when_it_is_in_force_and_a_dead_drivers_until_the_next() {
    assert!(rustix::process::geteuid().is_root(), "attaching programs needs root");
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let conductor = Mailbox::new().unwrap();
        let opened =
            Gate::open(&folder.path().join("admin.sock"), &SystemClock::default(), conductor, None, None);
        let (gate, keeper) = opened.unwrap_or_else(|why| panic!("{why}"));
        gate.words.tenant(TenantId::default()).set(None, &crate::policy::Limits::default());
        (gate, keeper)
    };
    // Nothing stays attached, however the test ends.
    let _end = End(folder.path().join("admin.sock"));
    let (gate, mut keeper) = open();
    let (id, file) = network_namespace(rustix::process::getpid()).unwrap();
    let tenant = TenantId::default();
    let space = Space { file: Arc::new(file), tenant, network: 0, container: None, addresses: Vec::new() };
    let world = || World { spaces: HashMap::from([(id, space.clone())]), ..World::default() };
    let rules = |port: u16| {
        let text = format!("[[rule]]\naddress = \"{PLACE}\"\nport = {port}\naction = \"deny\"\n");
        Arc::new(Policy::parse(&text).unwrap())
    };
    let in_force = || InForce { twins: HashSet::new(), outcome: Arc::new(Outcome::new(None, None)) };
    let staged = keeper.stage_policy(rules(1), world(), None).unwrap();
    assert_eq!(errno(1), libc::ECONNREFUSED, "staged only");
    gate.words.flip(staged.generation);
    keeper.settle(in_force());
    assert_eq!((errno(1), errno(2)), (libc::EACCES, libc::ECONNREFUSED));
    assert_eq!([0, 1].map(|rule| gate.words.hits(staged.hits, rule).load(Ordering::Relaxed)), [1, 1]);
    assert_eq!(gate.words.tenant(tenant).denied.load(Ordering::Relaxed), 1);
    // A discarded policy leaves no trace.
    keeper.stage_policy(rules(2), world(), None).unwrap();
    keeper.apply(ToGate::Discard);
    assert_eq!((errno(1), errno(2)), (libc::EACCES, libc::ECONNREFUSED));
    // A namespace that goes takes its entries along, and a new one brings them, without a new generation.
    let tell = |keeper: &mut Keeper, space: Option<Space>| {
        let spaces = vec![(id, space)];
        keeper.apply(ToGate::Changed(Changes { spaces, ..Changes::default() }, None));
    };
    let generation = gate.words.generation();
    tell(&mut keeper, None);
    assert_eq!(errno(1), libc::ECONNREFUSED, "nobody that is known");
    tell(&mut keeper, Some(space.clone()));
    assert_eq!((errno(1), gate.words.generation()), (libc::EACCES, generation));
    // The driver dies.
    drop((gate, keeper));
    assert_eq!((errno(1), errno(2)), (libc::EACCES, libc::ECONNREFUSED));
    let (gate, mut keeper) = open();
    assert_eq!(errno(1), libc::EACCES, "until the next one has a word");
    let staged = keeper.stage_policy(Arc::new(Policy::default()), World::default(), None).unwrap();
    gate.words.flip(staged.generation);
    keeper.settle(in_force());
    assert_eq!(errno(1), libc::ECONNREFUSED);
    keeper.programs.end();
    assert!(!folder.path().join("admin.gate").exists());
}
