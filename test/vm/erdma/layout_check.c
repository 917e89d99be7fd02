// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* Checks that layout.h agrees with the driver's own header. Only the guest's module compiles it, as
 * only that has the header. */
#include <linux/build_bug.h>
#include <linux/stddef.h>

#include "erdma_hw.h"
#include "layout.h"

#define SAME(ours, theirs) static_assert((uint64_t)(ours) == (uint64_t)(theirs))
#define AT(ours, field, theirs, other)                                            \
  static_assert(offsetof(struct ours, field) == offsetof(struct theirs, other) && \
                sizeof_field(struct ours, field) == sizeof_field(struct theirs, other))

SAME(ERM_VERSION, ERDMA_REGS_VERSION_REG);
SAME(ERM_CONTROL, ERDMA_REGS_DEV_CTRL_REG);
SAME(ERM_STATUS, ERDMA_REGS_DEV_ST_REG);
SAME(ERM_MAC_LOW, ERDMA_REGS_NETDEV_MAC_L_REG);
SAME(ERM_MAC_HIGH, ERDMA_REGS_NETDEV_MAC_H_REG);
SAME(ERM_COMMANDS, ERDMA_REGS_CMDQ_SQ_ADDR_L_REG);
SAME(ERM_COMMANDS + 4, ERDMA_REGS_CMDQ_SQ_ADDR_H_REG);
SAME(ERM_RESULTS, ERDMA_REGS_CMDQ_CQ_ADDR_L_REG);
SAME(ERM_COMMAND_DEPTH, ERDMA_REGS_CMDQ_DEPTH_REG);
SAME(ERM_COMMAND_EQ_DEPTH, ERDMA_REGS_CMDQ_EQ_DEPTH_REG);
SAME(ERM_COMMAND_EQ, ERDMA_REGS_CMDQ_EQ_ADDR_L_REG);
SAME(ERM_COMMAND_EQ + 4, ERDMA_REGS_CMDQ_EQ_ADDR_H_REG);
SAME(ERM_AEQ, ERDMA_REGS_AEQ_ADDR_L_REG);
SAME(ERM_AEQ_DEPTH, ERDMA_REGS_AEQ_DEPTH_REG);
SAME(ERM_GROUPS, ERDMA_REGS_GRP_NUM_REG);
SAME(ERM_AEQ_DOORBELL, ERDMA_REGS_AEQ_DB_REG);
SAME(ERM_EQ_DOORBELLS, ERDMA_REGS_CEQ_DB_BASE_REG);
SAME(8, ERDMA_DB_SIZE);
SAME(ERM_COMMAND_DOORBELL, ERDMA_CMDQ_SQDB_REG);
SAME(ERM_RESULT_DOORBELL, ERDMA_CMDQ_CQDB_REG);
SAME(ERM_CONTROL_RESET, ERDMA_REG_DEV_CTRL_RESET_MASK);
SAME(ERM_CONTROL_START, ERDMA_REG_DEV_CTRL_INIT_MASK);
SAME(ERM_STATUS_RESET_DONE, ERDMA_REG_DEV_ST_RESET_DONE_MASK);
SAME(ERM_STATUS_STARTED, ERDMA_REG_DEV_ST_INIT_DONE_MASK);
SAME(32, ERDMA_NUM_MSIX_VEC);

SAME(ERM_CQ_DOORBELL_COUNT, ERDMA_CQDB_IDX_MASK);
SAME(ERM_CQ_DOORBELL_CQN, ERDMA_CQDB_CQN_MASK);
SAME(ERM_CQ_DOORBELL_ARMED, ERDMA_CQDB_ARM_MASK);
SAME(ERM_CQ_DOORBELL_SOLICITED, ERDMA_CQDB_SOL_MASK);
SAME(ERM_CQ_DOORBELL_EVENTS, ERDMA_CQDB_CMDSN_MASK);
SAME(ERM_CQ_DOORBELL_CI, ERDMA_CQDB_CI_MASK);
SAME(ERM_EQ_DOORBELL_ARMED, ERDMA_EQDB_ARM_MASK);
SAME(ERM_EQ_DOORBELL_CI, ERDMA_EQDB_CI_MASK);
SAME(ERM_SQ_DOORBELL_QPN, ERDMA_SQE_HDR_QPN_MASK);
SAME(ERM_QUEUE_DOORBELL_PI, ERDMA_SQE_HDR_WQEBB_INDEX_MASK);
SAME(ERM_BLOCK, SQEBB_SIZE);
SAME(ERM_BLOCK, RQE_SIZE);
SAME(ERM_BLOCK, CQE_SIZE);
SAME(ERM_EVENT, EQE_SIZE);
SAME(ERM_MOST_BLOCKS, ERDMA_MAX_WQEBB_PER_SQE);

SAME(ERM_COMMAND_BLOCKS, ERDMA_CMD_HDR_WQEBB_CNT_MASK);
SAME(ERM_COMMAND_TAG, ERDMA_CMD_HDR_CONTEXT_COOKIE_MASK);
SAME(ERM_COMMAND_MODULE, ERDMA_CMD_HDR_SUB_MOD_MASK);
SAME(ERM_COMMAND_OPCODE, ERDMA_CMD_HDR_OPCODE_MASK);
SAME(ERM_COMMAND_INDEX, ERDMA_CMD_HDR_WQEBB_INDEX_MASK);
#define COMMAND(ours, module, opcode) SAME(ours, (module) << 8 | (opcode))
COMMAND(ERM_QUERY_DEVICE, CMDQ_SUBMOD_RDMA, CMDQ_OPCODE_QUERY_DEVICE);
COMMAND(ERM_CREATE_QP, CMDQ_SUBMOD_RDMA, CMDQ_OPCODE_CREATE_QP);
COMMAND(ERM_DESTROY_QP, CMDQ_SUBMOD_RDMA, CMDQ_OPCODE_DESTROY_QP);
COMMAND(ERM_MODIFY_QP, CMDQ_SUBMOD_RDMA, CMDQ_OPCODE_MODIFY_QP);
COMMAND(ERM_CREATE_CQ, CMDQ_SUBMOD_RDMA, CMDQ_OPCODE_CREATE_CQ);
COMMAND(ERM_DESTROY_CQ, CMDQ_SUBMOD_RDMA, CMDQ_OPCODE_DESTROY_CQ);
COMMAND(ERM_REGISTER, CMDQ_SUBMOD_RDMA, CMDQ_OPCODE_REG_MR);
COMMAND(ERM_DEREGISTER, CMDQ_SUBMOD_RDMA, CMDQ_OPCODE_DEREG_MR);
COMMAND(ERM_CREATE_EQ, CMDQ_SUBMOD_COMMON, CMDQ_OPCODE_CREATE_EQ);
COMMAND(ERM_DESTROY_EQ, CMDQ_SUBMOD_COMMON, CMDQ_OPCODE_DESTROY_EQ);
COMMAND(ERM_QUERY_FIRMWARE, CMDQ_SUBMOD_COMMON, CMDQ_OPCODE_QUERY_FW_INFO);
COMMAND(ERM_SET_MTU, CMDQ_SUBMOD_COMMON, CMDQ_OPCODE_CONF_MTU);

AT(erm_create_eq, ring, erdma_cmdq_create_eq_req, qbuf_addr);
AT(erm_create_eq, vector, erdma_cmdq_create_eq_req, vector_idx);
AT(erm_create_eq, eqn, erdma_cmdq_create_eq_req, eqn);
AT(erm_create_eq, log_depth, erdma_cmdq_create_eq_req, depth);
AT(erm_create_eq, record_low, erdma_cmdq_create_eq_req, db_dma_addr_l);
AT(erm_destroy_eq, eqn, erdma_cmdq_destroy_eq_req, eqn);
AT(erm_create_cq, shape, erdma_cmdq_create_cq_req, cfg0);
AT(erm_create_cq, ring_low, erdma_cmdq_create_cq_req, qbuf_addr_l);
AT(erm_create_cq, ring_high, erdma_cmdq_create_cq_req, qbuf_addr_h);
AT(erm_create_cq, place, erdma_cmdq_create_cq_req, cfg1);
AT(erm_create_cq, record, erdma_cmdq_create_cq_req, cq_db_info_addr);
AT(erm_create_cq, offset, erdma_cmdq_create_cq_req, first_page_offset);
SAME(ERM_CQ_LOG_DEPTH, ERDMA_CMD_CREATE_CQ_DEPTH_MASK);
SAME(ERM_CQ_PAGE_SHIFT, ERDMA_CMD_CREATE_CQ_PAGESIZE_MASK);
SAME(ERM_CQ_NUMBER, ERDMA_CMD_CREATE_CQ_CQN_MASK);
SAME(ERM_CQ_PAGES, ERDMA_CMD_CREATE_CQ_MTT_CNT_MASK);
SAME(ERM_CQ_TABLE, ERDMA_CMD_CREATE_CQ_MTT_TYPE_MASK);
SAME(ERM_CQ_EQN, ERDMA_CMD_CREATE_CQ_EQN_MASK);

AT(erm_create_qp, sq_shape, erdma_cmdq_create_qp_req, cfg0);
AT(erm_create_qp, rq_shape, erdma_cmdq_create_qp_req, cfg1);
AT(erm_create_qp, sq_place, erdma_cmdq_create_qp_req, sq_cqn_mtt_cfg);
AT(erm_create_qp, rq_place, erdma_cmdq_create_qp_req, rq_cqn_mtt_cfg);
AT(erm_create_qp, sq_ring, erdma_cmdq_create_qp_req, sq_buf_addr);
AT(erm_create_qp, rq_ring, erdma_cmdq_create_qp_req, rq_buf_addr);
AT(erm_create_qp, sq_pages, erdma_cmdq_create_qp_req, sq_mtt_cfg);
AT(erm_create_qp, rq_pages, erdma_cmdq_create_qp_req, rq_mtt_cfg);
AT(erm_create_qp, sq_record, erdma_cmdq_create_qp_req, sq_db_info_dma_addr);
AT(erm_create_qp, rq_record, erdma_cmdq_create_qp_req, rq_db_info_dma_addr);
SAME(ERM_QP_LOG_DEPTH, ERDMA_CMD_CREATE_QP_SQ_DEPTH_MASK);
SAME(ERM_QP_LOG_DEPTH, ERDMA_CMD_CREATE_QP_RQ_DEPTH_MASK);
SAME(ERM_QP_NUMBER, ERDMA_CMD_CREATE_QP_QPN_MASK);
SAME(ERM_QP_PD, ERDMA_CMD_CREATE_QP_PD_MASK);
SAME(ERM_QP_PAGE_SHIFT, ERDMA_CMD_CREATE_QP_PAGE_SIZE_MASK);
SAME(ERM_QP_CQN, ERDMA_CMD_CREATE_QP_CQN_MASK);
SAME(ERM_QP_OFFSET, ERDMA_CMD_CREATE_QP_PAGE_OFFSET_MASK);
SAME(ERM_QP_PAGES, ERDMA_CMD_CREATE_QP_MTT_CNT_MASK);
SAME(ERM_QP_TABLE, ERDMA_CMD_CREATE_QP_MTT_TYPE_MASK);

AT(erm_modify_qp, target, erdma_cmdq_modify_qp_req, cfg);
AT(erm_modify_qp, cookie, erdma_cmdq_modify_qp_req, cookie);
AT(erm_modify_qp, peer_ip, erdma_cmdq_modify_qp_req, dip);
AT(erm_modify_qp, own_ip, erdma_cmdq_modify_qp_req, sip);
AT(erm_modify_qp, own_port, erdma_cmdq_modify_qp_req, sport);
AT(erm_modify_qp, peer_port, erdma_cmdq_modify_qp_req, dport);
SAME(ERM_TARGET_STATE, ERDMA_CMD_MODIFY_QP_STATE_MASK);
SAME(ERM_TARGET_QPN, ERDMA_CMD_MODIFY_QP_QPN_MASK);

AT(erm_register_mr, name, erdma_cmdq_reg_mr_req, cfg0);
AT(erm_register_mr, rights, erdma_cmdq_reg_mr_req, cfg1);
AT(erm_register_mr, start, erdma_cmdq_reg_mr_req, start_va);
AT(erm_register_mr, size, erdma_cmdq_reg_mr_req, size);
AT(erm_register_mr, place, erdma_cmdq_reg_mr_req, cfg2);
AT(erm_register_mr, pages, erdma_cmdq_reg_mr_req, phy_addr);
AT(erm_deregister_mr, name, erdma_cmdq_dereg_mr_req, cfg);
SAME(ERM_MR_VALID, ERDMA_CMD_MR_VALID_MASK);
SAME(ERM_MR_KEY, ERDMA_CMD_MR_KEY_MASK);
SAME(ERM_MR_INDEX, ERDMA_CMD_MR_MPT_IDX_MASK);
SAME(ERM_MR_PD, ERDMA_CMD_REGMR_PD_MASK);
SAME(ERM_MR_TYPE, ERDMA_CMD_REGMR_TYPE_MASK);
SAME(ERM_MR_RIGHTS, ERDMA_CMD_REGMR_RIGHT_MASK);
SAME(ERM_MR_PAGE_SHIFT, ERDMA_CMD_REGMR_PAGESIZE_MASK);
SAME(ERM_MR_TABLE, ERDMA_CMD_REGMR_MTT_TYPE_MASK);
SAME(ERM_MR_PAGES, ERDMA_CMD_REGMR_MTT_CNT_MASK);
AT(erm_destroy_queue, number, erdma_cmdq_destroy_qp_req, qpn);
AT(erm_destroy_queue, number, erdma_cmdq_destroy_cq_req, cqn);
AT(erm_set_mtu, mtu, erdma_cmdq_config_mtu_req, mtu);

SAME(ERM_LOG_MOST_CQES, ERDMA_CMD_DEV_CAP_MAX_CQE_MASK);
SAME(ERM_LOG_MOST_RECEIVES, ERDMA_CMD_DEV_CAP_MAX_RECV_WR_MASK);
SAME(ERM_LOG_LARGEST_MR, ERDMA_CMD_DEV_CAP_MAX_MR_SIZE_MASK);
SAME(ERM_QP_BLOCKS, ERDMA_CMD_DEV_CAP_QBLOCK_MASK);
SAME(ERM_QPS_PER_BLOCK, ERDMA_NQP_PER_QBLOCK);
SAME(ERM_QP_COOKIE, ERDMA_CMDQ_CREATE_QP_RESP_COOKIE_MASK);

AT(erm_completion, header, erdma_cqe, hdr);
AT(erm_completion, index, erdma_cqe, qe_idx);
AT(erm_completion, qpn, erdma_cqe, qpn);
AT(erm_completion, data, erdma_cqe, imm_data);
AT(erm_completion, size, erdma_cqe, size);
SAME(ERM_CQE_OWNER, ERDMA_CQE_HDR_OWNER_MASK);
SAME(ERM_CQE_OPCODE, ERDMA_CQE_HDR_OPCODE_MASK);
SAME(ERM_CQE_QUEUE, ERDMA_CQE_HDR_QTYPE_MASK);
SAME(ERM_CQE_SYNDROME, ERDMA_CQE_HDR_SYNDROME_MASK);
SAME(ERM_OF_SENDS, ERDMA_CQE_QTYPE_SQ);
SAME(ERM_OF_RECEIVES, ERDMA_CQE_QTYPE_RQ);
SAME(ERM_OF_COMMANDS, ERDMA_CQE_QTYPE_CMDQ);
SAME(ERM_EVENT_OWNER, ERDMA_CEQE_HDR_O_MASK);
SAME(ERM_EVENT_OWNER, ERDMA_AEQE_HDR_O_MASK);
SAME(ERM_EVENT_CQN, ERDMA_CEQE_HDR_CQN_MASK);
SAME(ERM_EVENT_CQ_PI, ERDMA_CEQE_HDR_PI_MASK);
SAME(ERM_EVENT_TYPE, ERDMA_AEQE_HDR_TYPE_MASK);
SAME(4, offsetof(struct erdma_aeqe, event_data0));
SAME(ERM_QP_FATAL, ERDMA_AE_TYPE_QP_FATAL_EVENT);
SAME(ERM_CQ_ERROR, ERDMA_AE_TYPE_CQ_ERR);

SAME(ERM_WORK_PARTS, ERDMA_SQE_HDR_SGL_LEN_MASK);
SAME(ERM_WORK_BLOCKS, ERDMA_SQE_HDR_WQEBB_CNT_MASK);
SAME(ERM_WORK_QPN, ERDMA_SQE_HDR_QPN_MASK);
SAME(ERM_WORK_OPCODE, ERDMA_SQE_HDR_OPCODE_MASK);
SAME(ERM_WORK_INLINE, ERDMA_SQE_HDR_INLINE_MASK);
SAME(ERM_WORK_FENCE, ERDMA_SQE_HDR_FENCE_MASK);
SAME(ERM_WORK_SOLICITED, ERDMA_SQE_HDR_SE_MASK);
SAME(ERM_WORK_SIGNALLED, ERDMA_SQE_HDR_CE_MASK);
SAME(ERM_WORK_INDEX, ERDMA_SQE_HDR_WQEBB_INDEX_MASK);
SAME(ERM_WRITE, ERDMA_OP_WRITE);
SAME(ERM_READ, ERDMA_OP_READ);
SAME(ERM_SEND, ERDMA_OP_SEND);
SAME(ERM_SEND_IMM, ERDMA_OP_SEND_WITH_IMM);
SAME(ERM_RECEIVED, ERDMA_OP_RECEIVE);
SAME(ERM_RECEIVED_WRITE_IMM, ERDMA_OP_RECV_IMM);
SAME(ERM_RECEIVED_INVALIDATE, ERDMA_OP_RECV_INV);
SAME(ERM_WRITE_IMM, ERDMA_OP_WRITE_WITH_IMM);
SAME(ERM_RECEIVED_SEND_IMM, ERDMA_OP_RSP_SEND_IMM);
SAME(ERM_SEND_INVALIDATE, ERDMA_OP_SEND_WITH_INV);
AT(erm_sge, address, erdma_sge, laddr);
AT(erm_sge, length, erdma_sge, length);
AT(erm_sge, key, erdma_sge, lkey);
AT(erm_work_request, data, erdma_write_sqe, imm_data);
AT(erm_work_request, length, erdma_write_sqe, length);
AT(erm_work_request, length, erdma_send_sqe, length);
AT(erm_work_request, length, erdma_readreq_sqe, length);
AT(erm_work_request, sink_key, erdma_write_sqe, sink_stag);
AT(erm_work_request, sink_low, erdma_write_sqe, sink_to_l);
AT(erm_work_request, sink_high, erdma_write_sqe, sink_to_h);
AT(erm_work_request, sink_key, erdma_readreq_sqe, sink_stag);
AT(erm_work_request, sink_low, erdma_readreq_sqe, sink_to_l);
SAME(ERM_SEND_PARTS_AT, sizeof(struct erdma_send_sqe));
SAME(ERM_WRITE_PARTS_AT, sizeof(struct erdma_write_sqe));
AT(erm_receive, index, erdma_rqe, qe_idx);
AT(erm_receive, qpn, erdma_rqe, qpn);
AT(erm_receive, address, erdma_rqe, to);
AT(erm_receive, length, erdma_rqe, length);
AT(erm_receive, key, erdma_rqe, stag);

SAME(ERM_GENERAL, ERDMA_WC_GENERAL_ERR);
SAME(ERM_BAD_RECEIVE, ERDMA_WC_RECV_WQE_FORMAT_ERR);
SAME(ERM_REMOTE_KEY, ERDMA_WC_RECV_STAG_INVALID_ERR);
SAME(ERM_REMOTE_RANGE, ERDMA_WC_RECV_ADDR_VIOLATION_ERR);
SAME(ERM_REMOTE_RIGHTS, ERDMA_WC_RECV_RIGHT_VIOLATION_ERR);
SAME(ERM_REMOTE_PD, ERDMA_WC_RECV_PDID_ERR);
SAME(ERM_BAD_REQUEST, ERDMA_WC_SEND_WQE_FORMAT_ERR);
SAME(ERM_LOCAL_KEY, ERDMA_WC_SEND_STAG_INVALID_ERR);
SAME(ERM_LOCAL_RANGE, ERDMA_WC_SEND_ADDR_VIOLATION_ERR);
SAME(ERM_LOCAL_RIGHTS, ERDMA_WC_SEND_RIGHT_VIOLATION_ERR);
SAME(ERM_LOCAL_PD, ERDMA_WC_SEND_PDID_ERR);
SAME(ERM_FLUSHED, ERDMA_WC_FLUSH_ERR);
SAME(ERM_RETRIES_EXCEEDED, ERDMA_WC_RETRY_EXC_ERR);
