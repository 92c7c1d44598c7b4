/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Triggered operations and deferred work (fi_trigger(3)): what starts them, in which order, what
 * counts their end, and how they are taken back. Two endpoints of one domain.
 */
#include "pair.h"

static void triggers(void)
{
	struct fi_triggered_context t = { .event_type = FI_TRIGGER_THRESHOLD };
	struct iovec v = { buf[0], 20 };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = b.addr, .context = &t };
	struct fi_op_cntr add = { .value = 5 };
	struct fi_op_msg later = { .msg = m, .flags = FI_COMPLETION };
	struct fi_deferred_work set = { .op_type = FI_OP_CNTR_SET }, never;
	struct fi_deferred_work send = { .op_type = FI_OP_SEND };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cntr *go, *done;

	DO(0, fi_cntr_open(domain, &na, &go, NULL));
	DO(0, fi_cntr_open(domain, &na, &done, NULL));
	t.trigger.threshold.cntr = go;
	t.trigger.threshold.threshold = 2;
	for (int i = 0; i < 2; i++)
		DO(0, fi_recv(b.ep, buf[1], 100, NULL, FI_ADDR_UNSPEC, NULL));
	DO(0, fi_sendmsg(a.ep, &m, FI_TRIGGER | FI_COMPLETION));
	DO(0, fi_cntr_add(go, 1));
	DO(-FI_EAGAIN, fi_cq_read(a.tx, buf[1], 1));
	DO(0, fi_cntr_add(go, 1));
	TRUE(take(b.rx).len == 20);
	TRUE(take(a.tx).op_context == &t);
	/* Deferred work: counter `go` triggers an add to `done`, which triggers a send. */
	add.cntr = done;
	set.triggering_cntr = go;
	set.threshold = 4;
	set.op.cntr = &add;
	later.ep = a.ep;
	send.triggering_cntr = done;
	send.threshold = 5;
	send.completion_cntr = go;
	send.op.msg = &later;
	never = send;
	never.threshold = 1000;
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &set));
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &send));
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &never));
	DO(0, fi_control(&domain->fid, FI_CANCEL_WORK, &never));
	DO(-FI_ENOENT, fi_control(&domain->fid, FI_CANCEL_WORK, &never));
	DO(0, fi_cntr_read(done));
	DO(0, fi_cntr_set(go, 4));
	TRUE(take(b.rx).len == 20);
	(void) take(a.tx);
	DO(5, fi_cntr_read(done));
	DO(0, fi_cntr_wait(go, 5, 10000));
	DO(0, fi_close(&go->fid));
	DO(0, fi_close(&done->fid));
}

/* Triggered operations start in the order of their thresholds, then of their calls. */
static void thresholds(void)
{
	struct fi_triggered_context t[3] = { 0 };
	struct iovec v = { buf[0], 0 };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = b.addr };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	const size_t after[] = { 3, 2, 3 };
	struct fid_cntr *go;

	DO(0, fi_cntr_open(domain, &na, &go, NULL));
	for (int i = 0; i < 3; i++) {
		t[i].event_type = FI_TRIGGER_THRESHOLD;
		t[i].trigger.threshold.cntr = go;
		t[i].trigger.threshold.threshold = after[i];
		v.iov_len = (size_t) i + 10;
		m.context = &t[i];
		DO(0, fi_recv(b.ep, buf[1], 100, NULL, FI_ADDR_UNSPEC, NULL));
		DO(0, fi_sendmsg(a.ep, &m, FI_TRIGGER | FI_COMPLETION));
	}
	DO(0, fi_cntr_add(go, 5));
	TRUE(take(b.rx).len == 11);
	TRUE(take(b.rx).len == 10);
	TRUE(take(b.rx).len == 12);
	for (int i = 0; i < 3; i++)
		(void) take(a.tx);
	DO(0, fi_close(&go->fid));
}

/* Deferred work: what counts its end, what starts it, and its target. */
static void work_ends(void)
{
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	struct iovec v = { buf[0], 20 }, into = { buf[1], 100 };
	struct fi_op_msg out = { .ep = a.ep, .flags = 0 }, in = { .ep = b.ep };
	struct fi_deferred_work recv = { .op_type = FI_OP_RECV }, send = { .op_type = FI_OP_SEND };
	struct fi_triggered_context t = { .event_type = FI_TRIGGER_THRESHOLD };
	uint64_t sent = fi_cntr_read(a.sent), got = fi_cntr_read(b.got);
	struct fi_cq_tagged_entry none;
	struct side gone, other;
	struct fid_cntr *go, *done;

	DO(0, fi_cntr_open(domain, &na, &go, NULL));
	DO(0, fi_cntr_open(domain, &na, &done, NULL));
	out.msg = (struct fi_msg) { .msg_iov = &v, .iov_count = 1, .addr = b.addr, .context = &out };
	in.msg = (struct fi_msg) { .msg_iov = &into, .iov_count = 1, .addr = FI_ADDR_UNSPEC };
	send.triggering_cntr = recv.triggering_cntr = go;
	send.completion_cntr = recv.completion_cntr = done;
	send.op.msg = &out;
	recv.op.msg = &in;
	/* Its counter alone counts it. */
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &recv));
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &send));
	while (fi_cntr_read(done) < 2)
		(void) fi_cq_read(b.rx, NULL, 0);
	DO(-FI_EAGAIN, fi_cq_read(a.tx, &none, 1));
	DO(-FI_EAGAIN, fi_cq_read(b.rx, &none, 1));
	DO(sent, fi_cntr_read(a.sent));
	DO(got, fi_cntr_read(b.got));
	/* With FI_COMPLETION the endpoint reports it, too; a counter that is both counts it once. */
	out.flags = FI_COMPLETION;
	send.completion_cntr = a.sent;
	DO(0, fi_recv(b.ep, buf[1], 100, NULL, FI_ADDR_UNSPEC, NULL));
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &send));
	TRUE(take(a.tx).op_context == &out);
	TRUE(take(b.rx).len == 20);
	DO(sent + 1, fi_cntr_read(a.sent));
	/* Errors of the counter start work, but no triggered operation, which can be cancelled. */
	send.completion_cntr = NULL;
	send.threshold = 2;
	t.trigger.threshold.cntr = go;
	t.trigger.threshold.threshold = 2;
	in.msg.context = &t;
	DO(0, fi_recvmsg(b.ep, &in.msg, FI_TRIGGER));
	DO(0, fi_recv(b.ep, buf[1], 100, NULL, FI_ADDR_UNSPEC, &into));
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &send));
	DO(0, fi_cntr_add(go, 1));
	DO(-FI_EAGAIN, fi_cq_read(a.tx, &none, 1));
	DO(0, fi_cntr_adderr(go, 1));
	TRUE(take(b.rx).op_context == &into);
	TRUE(take(a.tx).op_context == &out);
	DO(0, fi_cancel(&b.ep->fid, &t));
	DO(FI_ECANCELED, take_error(b.rx));
	DO(0, fi_cancel(&b.ep->fid, &t));
	DO(-FI_EAGAIN, fi_cq_read(b.rx, &none, 1));
	/* An address that stands for another endpoint by now is not used. */
	open_side(&gone, NULL, FI_WAIT_NONE, NULL);
	out.msg.addr = gone.addr;
	send.threshold = 3;
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &send));
	DO(0, fi_av_remove(av, &gone.addr, 1, 0));
	open_side(&other, NULL, FI_WAIT_NONE, NULL);
	TRUE(other.addr == gone.addr);
	DO(0, fi_recv(other.ep, buf[1], 100, NULL, FI_ADDR_UNSPEC, NULL));
	DO(0, fi_cntr_add(go, 1));
	DO(FI_ECANCELED, take_error(a.tx));
	DO(-FI_EAGAIN, fi_cq_read(other.rx, &none, 1));
	DO(0, fi_av_remove(av, &other.addr, 1, 0));
	close_side(&other);
	close_side(&gone);
	DO(0, fi_close(&go->fid));
	DO(0, fi_close(&done->fid));
}

/* FI_FLUSH_WORK takes work back that has not started; what cannot start is reported. */
static void flush_and_failure(void)
{
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	struct iovec v = { buf[0], 20 };
	struct fi_op_msg out = { .ep = a.ep, .flags = FI_COMPLETION };
	struct fi_deferred_work send[2] = { { .op_type = FI_OP_SEND }, { .op_type = FI_OP_SEND } };
	struct fi_cq_tagged_entry none;
	struct fid_cntr *go, *done;

	DO(0, fi_cntr_open(domain, &na, &go, NULL));
	DO(0, fi_cntr_open(domain, &na, &done, NULL));
	out.msg = (struct fi_msg) { .msg_iov = &v, .iov_count = 1, .addr = b.addr, .context = &out };
	for (int i = 0; i < 2; i++) {
		send[i].triggering_cntr = go;
		send[i].completion_cntr = done;
		send[i].threshold = (uint64_t) i + 1;
		send[i].op.msg = &out;
		DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &send[i]));
	}
	DO(0, fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
	DO(-FI_ENOENT, fi_control(&domain->fid, FI_CANCEL_WORK, &send[1]));
	DO(0, fi_cntr_add(go, 2));
	DO(-FI_EAGAIN, fi_cq_read(a.tx, &none, 1));
	DO(0, fi_cntr_read(done));
	/* Injected data has to fit. */
	v.iov_len = sizeof(buf[0]);
	out.flags |= FI_INJECT;
	DO(0, fi_control(&domain->fid, FI_QUEUE_WORK, &send[0]));
	DO(FI_EMSGSIZE, take_error(a.tx));
	DO(0, fi_cntr_read(done));
	DO(1, fi_cntr_readerr(done));
	DO(0, fi_close(&go->fid));
	DO(0, fi_close(&done->fid));
}

int main(void)
{
	open_pair();
	triggers();
	thresholds();
	work_ends();
	flush_and_failure();
	close_pair();
	printf("what was deferred starts when it is to\n");
	return EXIT_SUCCESS;
}
